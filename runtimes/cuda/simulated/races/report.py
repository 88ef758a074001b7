"""What is said of a race: both accesses, the place, and what would have ordered them."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.races import keys as key
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.races.shadow import Shadow
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

# What is missing, and the way out.
_TWINS = "both in one run of the instruction, with different values", "let one thread write, or all the same value"
_SCOPE = "the scope .cta of an atomic does not reach another block", "atomics that blocks meet at need the scope .gpu"
_ORDERS = {
    "warp": (
        "no instruction that the warp runs together lies between",
        "bar.warp.sync orders the lanes of a warp",
    ),
    "block": ("no barrier orders the two warps", "bar.sync orders the warps of a block"),
    "grid": (
        "no release and acquire order the two blocks",
        "an atomic with release behind the first access and one with acquire before the second order blocks",
    ),
}


@dataclass(frozen=True)
class Access:
    """One run of an instruction that accesses memory; ``did`` and ``does`` are what messages say: wrote, writes."""

    instruction: InstructionReader
    did: str
    does: str
    order: Order


@dataclass(frozen=True)
class Meeting:
    """Accesses that nothing orders: the number of the current one, the column of the earlier one, and its key."""

    at: Array
    column: Array
    before: Array


def race(
    batch: Batch,
    first_warp: int,
    shadow: Shadow,
    byte: int,
    mine: tuple[int, Access],
    before: tuple[int, Access],
) -> KernelFault:
    """Returns the fault of the access ``mine`` that meets ``before``, each as key and access, at a byte of a piece."""
    (my_key, access), (other_key, earlier) = mine, before
    op, location = earlier.instruction.origin(earlier.instruction.instruction)
    if location is not None:
        op = f"{op} ({location})"
    if access.order.strong and earlier.order.strong:
        missing, hint = _SCOPE
    elif my_key & key.TIME == other_key & key.TIME:
        missing, hint = _TWINS
    else:
        missing, hint = _ORDERS[_distance(batch, my_key, other_key)]
    return access.instruction.fault(
        f"race: {_who(batch, first_warp, my_key)} {access.does} byte {byte} of {shadow.name}, which "
        f"{_who(batch, first_warp, other_key)} {earlier.did} before: {missing}",
        details=(f"before: {op}",),
        hint=hint,
    )


def _who(batch: Batch, first_warp: int, number: int) -> str:
    lane = number >> 32 & 63
    warp = (number >> 38 & key.MOST_WARPS - 1) - first_warp
    if lane != key.SEVERAL:
        return batch.thread_name(warp * WARP + lane)
    warps = batch.shape[1] // WARP
    name = batch.thread_name(warp * WARP)
    return f"lanes of warp {warp % warps} of block {name.split(' of block ')[1]}"


def _distance(batch: Batch, mine: int, before: int) -> str:
    warps = batch.shape[1] // WARP
    first, second = (number >> 38 & key.MOST_WARPS - 1 for number in (mine, before))
    if first == second:
        return "warp"
    return "block" if first // warps == second // warps else "grid"
