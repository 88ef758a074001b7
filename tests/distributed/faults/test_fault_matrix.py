"""A part of the fault matrix: each fault over each transport, in one operation. All cells: tools/fault_matrix.py."""

from __future__ import annotations

from pathlib import Path

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
from tests.support.faults.driver import Outcome, files_left, judge, leaks, place, run_cells

_WITHOUT_NAMESPACES = namespaces.missing()
EXHAUSTIVE = pytest.mark.exhaustive


def quick() -> list[Cell]:
    """Returns one cell for each fault and transport: operations of several kinds, the root being the victim or not."""
    chosen: dict[Fault, tuple[str, str]] = {  # and over TCP, or where the victim is beside another rank
        "killed": ("all_gather", "coalesced"), "killed within": ("all_reduce", "plan"),
        "stopped": ("reduce", "subgroup"), "desync": ("reduce_scatter", "plan"),
        "shape": ("all_reduce", "unequal all_to_all"), "dtype": ("broadcast", "coalesced"),
        "slow": ("scatter", "gather"), "no memory": ("all_reduce", "subgroup"),
        "partition": ("all_reduce", "subgroup"), "loss": ("all_to_all", "plan"),
    }  # fmt: skip
    found: list[Cell] = []
    for fault in FAULTS:
        for transport in TRANSPORTS:
            possible = list(cells(fault, transport))
            operation = chosen[fault][transport in ("tcp", "inside")]
            preferred = [cell for cell in possible if cell.operation == operation] or possible
            found += preferred[:1] if transport == "both" else preferred[-1:]
    # What is killed among ranks of both kinds stands in the whole matrix: each such cell starts processes of its own.
    return [cell.patient() for cell in found if cell.transport in ("shm", "tcp") or not cell.fault.startswith("killed")]


# The default has each fault that takes processes of its own over one transport, and the other faults over all of them.
IN_DEFAULT: dict[Fault, Transport] = {"killed": "shm", "killed within": "tcp", "partition": "both", "loss": "both"}
SETS = [
    pytest.param(
        together,
        marks=[] if IN_DEFAULT.get(together[0].fault, together[0].transport) == together[0].transport else EXHAUSTIVE,
    )
    for together in process_sets(quick())
]


@pytest.mark.parametrize("together", SETS, ids=lambda cells: "+".join(cell.name for cell in cells))
def test_ranks_end_in_time_name_the_culprit_and_go_on(together: list[Cell]) -> None:
    if together[0].wired and _WITHOUT_NAMESPACES:
        pytest.skip(_WITHOUT_NAMESPACES)
    outcomes = run_cells(together)
    assert not {outcome.cell.name: outcome.problems for outcome in outcomes if outcome.problems}
    assert [outcome.cell for outcome in outcomes] == together


def line(rank: int, message: str, seconds: float = 0.1, code: str = "LK8009") -> dict[str, object]:
    return {"rank": rank, "code": code, "message": message, "seconds": seconds, "left": {"size": 2, "right": True},
            "record": {}}  # fmt: skip


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
    assert "operation and its number" in problems("shm", "all_reduce", message="all_reduce: rank 1 has ended")[0]
    assert "operation and its number" in problems("shm", "all_reduce", message="barrier #3: rank 1 has ended")[0]
    assert "its deadline" in problems("shm", "all_reduce", seconds=60.0)[0]
    assert "code None" in problems("shm", "all_reduce", code=None)[0]
    assert "those that are left" in problems("shm", "all_reduce", left={"size": 2, "right": False})[0]
    assert "operation and its number" in problems("tcp", MESSAGE, message="receive of rank 0: rank 1 has ended")[0]
    outcome = Outcome(Cell("killed", "barrier", "shm"))
    judge(outcome, {0: line(0, "barrier #3: rank 1 has ended")})
    assert outcome.problems == ["rank 2 said nothing within its deadline: it hangs or ended"]


def test_the_judge_knows_which_operation_an_error_names() -> None:
    reduce, plan = Cell("killed", "reduce", "tcp"), Cell("killed", "plan", "shm")
    assert place(reduce, "reduce #3 (f32 x 12): rank 1 has ended") == "exact"
    assert place(reduce, "barrier #7: rank 1 has ended; rank 1 was last seen in reduce(f32 x 12) #2") == "exact"
    assert place(reduce, "barrier #7: rank 1 has ended") == "later"
    assert place(reduce, "barrier #8: rank 1 has ended") is None
    assert place(reduce, "reduce #2: rank 1 has ended") is None
    assert place(plan, "broadcast #8: rank 1 has ended") == "exact"
    assert place(plan, "broadcast #5: rank 1 has ended") is None
    message = Cell("killed", MESSAGE, "shm")
    assert place(message, "receive (f32 x 12, from rank 1), tag 3: rank 1 has ended") == "exact"
    assert place(message, "barrier #1: rank 1 has ended") == "later"
    late = {"message": "all_reduce #4: rank 1 has ended"}
    assert "the operation and its number" in problems("shm", "all_reduce", **late)[0]
    assert not problems("shm", "reduce", message="reduce #4: rank 1 has ended")


def test_leaks_are_seen() -> None:
    held = {"descriptors": 5, "shared mappings": 0, "threads": 1, "processes": 0}
    end = {"before": held, "after": held, "grown": 0}
    assert not list(leaks({0: end, 2: end}))
    for what, count in held.items():
        more = {**end, "after": {**held, what: count + 1}}
        assert list(leaks({0: end, 2: more})) == [f"rank 2 holds {count + 1} {what}, {count} at first"]
    assert list(leaks({1: {**end, "grown": 30 << 20}})) == ["the memory of rank 1 grew by 31457280 bytes"]


def test_files_that_are_left_are_seen(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    assert not list(files_left(tmp_path))
    (tmp_path / "temporary/flight").touch()
    assert list(files_left(tmp_path)) == ["the file flight is left"]


def test_the_matrix_holds_every_operation_over_every_transport() -> None:
    names = {cell.name for fault in FAULTS for transport in TRANSPORTS for cell in cells(fault, transport)}
    assert {"killed/all_reduce/shm", "stopped/gather@1/shm", "shape/message/tcp", "loss/all_to_all/both"} <= names
    assert "shape/barrier/shm" not in names
