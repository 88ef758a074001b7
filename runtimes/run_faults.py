"""Why a run ends before its last step, as people read it: a loop without end, an index out of range, a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from lowerkit.errors import LowerkitError, RuntimeFault
from lowerkit.runtimes.device_calls import DeviceCalls
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, ITEM_SIZES, IndexCheck, Step

if TYPE_CHECKING:
    from lowerkit.runtimes.mesh.steps import CollectiveCalls

_NOTHING_CHANGED = "the run has ended there, and no state has changed"
_OTHERS_WENT_ON = "other ranks went on: give all of them the same indices, in a new group"


def endless(error: OverflowError) -> RuntimeFault:
    """Returns LK8014: the loops of a run did not end, and it was given up."""
    return RuntimeFault(
        "LK8014",
        f"the run was given up: {error}",
        hint="does its condition depend on what its body computes? lowerkit inspect shows the steps",
    )


def raise_step_fault(
    steps: Sequence[Step],
    fault: tuple[int, int, int, int],
    dims: Mapping[str, int],
    calls: DeviceCalls | None,
    collectives: CollectiveCalls | None,
) -> NoReturn:
    """Raises why a step ended a run.

    Args:
        steps: of the program.
        fault: (step, status, element, index), as the executor gives it.
        dims: the value of each dim.
        calls: the devices of the session.
        collectives: what it does together with other ranks.

    Raises:
        RuntimeFault: LK8015, an index is out of range; LK8016, a device failed.
        ResourceError: LK7002, a device ran out of memory.
        LowerkitError: a collective failed.
    """
    number, status, element, index = fault
    step = steps[number]
    if status == 0:
        try:
            if collectives is not None:
                collectives.meet_at_fault(number)
        except LowerkitError as other:
            raise index_fault(step, element, index, dims, _OTHERS_WENT_ON) from other
        raise index_fault(step, element, index, dims)
    if step.kernel == COLLECTIVE_KERNEL:
        assert collectives is not None, "a program with collectives runs in a group"
        collectives.raise_failure(step, status)
    assert calls is not None, "only calls return a status"
    try:
        calls.raise_failure(step)
    except LowerkitError as error:
        if collectives is None:
            raise
        raise collectives.ended_by(error) from error


def index_fault(
    step: Step, element: int, index: int, dims: Mapping[str, int], hint: str = _NOTHING_CHANGED
) -> RuntimeFault:
    """Returns LK8015: element number ``element`` of the indices that ``step`` checks is ``index``."""
    check = step.check
    assert check is not None, "only a check of indices ends a run"
    extent = evaluate(check.extents[element % len(check.extents)], dims)
    least = -extent if check.wraps else 0
    allowed = f"{least} to {extent - 1}" if extent else "no index"
    if check.exempt is not None:
        allowed += f", or {check.exempt}"
    return RuntimeFault(
        "LK8015",
        f"index {index} of {check.operator} is out of range for a dimension of size {extent} "
        f"(element {element} of the indices; allowed: {allowed})",
        op=check.operator,
        location=step.location or None,
        hint=hint,
    )


def check_dims(check: IndexCheck, extents: Sequence[int], size: int) -> list[int]:
    """Returns what a check of ``size`` bytes hands to the native runtime; ``index_check.h`` says what each number is.

    Raises:
        ValueError: an extent is negative, or the extents do not divide the indices.
    """
    item = ITEM_SIZES[check.dtype]
    if size % (item * len(extents)) or min(extents) < 0:
        raise ValueError(f"{size} bytes of {check.dtype} indices are into {list(extents)} elements")
    exempt = check.exempt
    return [size // item, item, int(check.wraps), int(exempt is not None), exempt or 0, *extents]
