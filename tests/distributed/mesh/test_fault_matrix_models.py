"""Ranks of a compiled model that fail each other: each fault over each transport, and what the judge sees.

All cells: tools/fault_matrix_models.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.mesh.faults.cells import Cell, cells
from tests.support.mesh.faults.driver import judge, run
from tests.support.mesh.faults.network import Artifacts, compile_artifacts
from tests.support.mesh.faults.rank import Line


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return compile_artifacts(tmp_path_factory.mktemp("artifacts"))


def quick() -> list[Cell]:
    """Returns one cell for each fault and transport; the meshes take turns."""
    return [cell.patient() for number, cell in enumerate(cells()) if number % 2 == number // 2 % 2 ^ number // 4 % 2]


# In the default a rank dies over both transports; the other faults take turns.
ALSO_IN_DEFAULT = {
    ("SIGSTOP", "shm"), ("slow", "tcp"), ("another artifact", "tcp"), ("another shape", "shm"), ("another mesh", "shm"),
}  # fmt: skip
CELLS = [
    pytest.param(
        cell,
        marks=[]
        if cell.fault == "SIGKILL" or (cell.fault, cell.transport) in ALSO_IN_DEFAULT
        else pytest.mark.exhaustive,
    )
    for cell in quick()
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_ranks_end_in_time_name_the_culprit_and_go_on(cell: Cell, made: Artifacts) -> None:
    assert not run(cell, made).problems


HELD = {"descriptors": 5, "threads": 1}
GOOD = Line(
    "LK8009",
    "error[LK8009]: all_reduce failed in step 'down' at rank 0 of tp=3: rank 1 has ended\n  at: network.py:27",
    0.1,
    again={"size": 2, "right": True},
    before=HELD,
    after=HELD,
)


def problems(**changed: Any) -> list[str]:
    """Judges a cell in which rank 0 said what it must, but for the changes."""
    return judge(Cell("SIGKILL", "shm"), {0: replace(GOOD, **changed)})


def test_the_judge_sees_what_is_missing() -> None:
    assert not problems()
    for part, changed in (
        ("does not name the rank", {"message": GOOD.message.replace("rank 1", "a rank")}),
        ("does not say in step '", {"message": GOOD.message.replace("in step 'down' ", "")}),
        ("does not say network.py:", {"message": GOOD.message.replace("network.py", "other.py")}),
        ("does not name the operation", {"message": GOOD.message.replace("all_reduce", "it")}),
        ("code LK8008", {"code": "LK8008"}),
        ("its deadline is", {"seconds": 60.0}),
        ("outputs are wrong", {"right": False}),
        ("goes on with", {"again": {"size": 2, "right": False}}),
        ("holds 6 descriptors, 5 at first", {"after": {**HELD, "descriptors": 6}}),
    ):
        (problem,) = problems(**changed)
        assert part in problem


def test_who_shares_no_group_with_the_victim_must_name_it_too() -> None:
    """Of ``dp=2,tp=2``: rank 1 was stopped, rank 2 waits for rank 0, and rank 0 for rank 1."""
    cell = Cell("SIGSTOP", "shm", "dp=2,tp=2")
    text = (
        "all_gather failed in step 'add' at rank 2 (dp=1,tp=0): waited 1 s for rank 0 (dp=0,tp=0){}\n  at: network.py:2"
    )

    def blamed(further: str) -> list[str]:
        again = {"size": 3, "right": True}
        return judge(cell, {2: replace(GOOD, code="LK8008", message=text.format(further), again=again)})

    assert not blamed("; rank 0 (dp=0,tp=0) waits for rank 1 (dp=0,tp=1)")
    (problem,) = blamed("")
    assert "does not name the rank" in problem
