"""A part of the fault matrix: each fault over each transport, in one operation. All cells: tools/fault_matrix.py."""

from __future__ import annotations

import pytest

from tests.support.faults import namespaces
from tests.support.faults.cells import (
    FAULTS,
    MESSAGE,
    TRANSPORTS,
    Cell,
    Fault,
    Transport,
    cells,
    process_sets,
)
from tests.support.faults.driver import Outcome, judge, run_cells

_WITHOUT_NAMESPACES = namespaces.missing()


def quick() -> list[Cell]:
    """Returns one cell for each fault and transport: operations of several kinds, the root being the victim or not."""
    chosen: dict[Fault, str] = {
        "killed": "all_gather", "killed within": "all_reduce", "stopped": "reduce", "desync": "reduce_scatter",
        "shape": "all_reduce", "dtype": "broadcast", "slow": "scatter", "no memory": "all_reduce",
        "partition": "all_reduce", "loss": "all_to_all",
    }  # fmt: skip
    found: list[Cell] = []
    for fault in FAULTS:
        for transport in TRANSPORTS:
            possible = list(cells(fault, transport))
            preferred = [cell for cell in possible if cell.operation == chosen[fault]] or possible
            found += preferred[:1] if transport == "both" else preferred[-1:]
    # What is killed among ranks of both kinds stands in the whole matrix: each such cell starts processes of its own.
    return [cell for cell in found if cell.transport != "both" or not cell.fault.startswith("killed")]


@pytest.mark.parametrize("together", process_sets(quick()), ids=lambda cells: "+".join(cell.name for cell in cells))
def test_ranks_end_in_time_name_the_culprit_and_go_on(together: list[Cell]) -> None:
    if together[0].wired and _WITHOUT_NAMESPACES:
        pytest.skip(_WITHOUT_NAMESPACES)
    outcomes = run_cells(together)
    assert not {outcome.cell.name: outcome.problems for outcome in outcomes if outcome.problems}
    assert [outcome.cell for outcome in outcomes] == together


def line(rank: int, message: str, seconds: float = 0.1, code: str = "LK8009") -> dict[str, object]:
    return {"rank": rank, "code": code, "message": message, "seconds": seconds, "left": {"size": 2, "right": True},
            "record": {"records": [{"sequence": 1}]}}  # fmt: skip


def problems(transport: Transport, operation: str, **changed: object) -> list[str]:
    """Judges a cell whose two survivors said what they must, but for the changes to rank 0's line."""
    good = f"{operation} #3 (f32 x 12), tag 3 of group 'g', rank 0: rank 1 has ended"
    lines = {0: {**line(0, good), **changed}, 2: line(2, good)}
    outcome = Outcome(Cell("killed", operation, transport))
    judge(outcome, lines)
    return outcome.problems


def test_the_judge_sees_what_is_missing() -> None:
    assert not problems("shm", "all_reduce")
    assert "does not name the rank" in problems("shm", "all_reduce", message="all_reduce #3: a rank has ended")[0]
    assert "the operation's number" in problems("shm", "all_reduce", message="all_reduce: rank 1 has ended")[0]
    assert "does not name all_reduce" in problems("shm", "all_reduce", message="barrier #3: rank 1 has ended")[0]
    assert "its deadline" in problems("shm", "all_reduce", seconds=60.0)[0]
    assert "code None" in problems("shm", "all_reduce", code=None)[0]
    assert "those that are left" in problems("shm", "all_reduce", left={"size": 2, "right": False})[0]
    assert "the message's tag" in problems("tcp", MESSAGE, message="receive of rank 0: rank 1 has ended")[0]
    outcome = Outcome(Cell("killed", "barrier", "shm"))
    judge(outcome, {0: line(0, "barrier #3: rank 1 has ended")})
    assert outcome.problems == ["rank 2 said nothing within its deadline: it hangs or ended"]


def test_the_matrix_holds_every_operation_over_every_transport() -> None:
    names = {cell.name for fault in FAULTS for transport in TRANSPORTS for cell in cells(fault, transport)}
    assert {"killed/all_reduce/shm", "stopped/gather@1/shm", "shape/message/tcp", "loss/all_to_all/both"} <= names
    assert "shape/barrier/shm" not in names
