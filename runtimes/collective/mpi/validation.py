"""What can be wrong with a call, found before anything is sent, as in ``runtimes/native/collective/validation.cpp``."""

from __future__ import annotations

from typing import Any

from lowerkit.runtimes.collective.calls import ANY_SOURCE, DTYPES, REDUCTIONS, Call, Operation, Reduction
from lowerkit.runtimes.collective.mpi.dtypes import is_float

# MPI counts in 32 bits.
MOST_ELEMENTS = (1 << 31) - 1
REDUCING = {Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER}
_ROOTED = {Operation.BROADCAST, Operation.REDUCE, Operation.SCATTER, Operation.GATHER, Operation.SEND}
_MESSAGES = {Operation.SEND, Operation.RECEIVE}
_BITWISE: set[Reduction] = {"band", "bor", "bxor"}


def complaints(call: Call[Any], rank: int, size: int, most_tag: int) -> list[str]:
    """Returns what is wrong with a call of a rank, all of it."""
    found: list[str] = []
    operation = call.operation
    has_peer = operation in _ROOTED or (operation == Operation.RECEIVE and call.root != ANY_SOURCE)
    if has_peer and not 0 <= call.root < size:
        found.append(f"rank {call.root} is not in the group: it has ranks 0 to {size - 1}")
    if operation in _MESSAGES:
        if call.root == rank:
            found.append("a message to itself")
        if not 0 <= call.tag <= most_tag:
            found.append(f"the tag {call.tag}; this MPI has tags from 0 to {most_tag}")
    if operation in REDUCING:
        found += _of_reduction(REDUCTIONS[call.reduction], call.dtype)
    return found + _of_parts(call, rank, size)


def _of_reduction(reduction: Reduction, dtype: int) -> list[str]:
    what = f"{reduction} of {DTYPES[dtype]}"
    if reduction in _BITWISE and is_float(dtype):
        return [f"{what}: it needs integers or bool"]
    if reduction == "avg" and DTYPES[dtype] == "bool":
        return [f"{what} has no meaning"]
    return [f"{what}: it needs floats"] if reduction == "premul_sum" and not is_float(dtype) else []


def _of_parts(call: Call[Any], rank: int, size: int) -> list[str]:
    operation = call.operation
    at_root = operation in {Operation.SCATTER, Operation.GATHER} and call.root == rank
    everywhere = operation in {Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL}
    if not at_root and not everywhere:
        return [f"{call.count} elements; MPI counts to {MOST_ELEMENTS}"] if call.count > MOST_ELEMENTS else []
    found = [
        f"{len(parts)} {name} for {size} ranks"
        for name, parts in (("parts", call.parts), ("input parts", call.input_parts))
        if len(parts) != size and (name == "parts" or operation == Operation.ALL_TO_ALL)
    ]
    if found:
        return found
    if max(sum(count for _, count in parts) for parts in (call.parts, call.input_parts)) > MOST_ELEMENTS:
        found.append(f"more than {MOST_ELEMENTS} elements in all parts: MPI does not count further")
    own = call.input_parts[rank][1] if operation == Operation.ALL_TO_ALL else call.count
    if call.parts[rank][1] != own:
        found.append(f"this rank's part has {call.parts[rank][1]} elements, its buffer {own}")
    return found
