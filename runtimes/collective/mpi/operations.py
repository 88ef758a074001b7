"""Each operation as a non-blocking one of MPI.

MPI takes the parts of an operation one after another in one buffer. Where a caller's parts do not lie so they are
copied into a temporary before, or out of one behind. PREMUL_SUM sends a scaled copy, AVG divides in the end. What is
sent and what is received must lie apart, unless MPI is told that they are the same (``IN_PLACE``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from lowerkit.runtimes.collective.calls import ANY_SOURCE, REDUCTIONS, Call, Operation, Part
from lowerkit.runtimes.collective.mpi import dtypes
from lowerkit.runtimes.collective.mpi.library import load_mpi

Step = Callable[[], None]


@dataclass
class Begun:
    """An operation under way.

    Attributes:
        requests: of MPI.
        kept: temporaries that live until they are done.
        finish: what is left to do then, in this order.
    """

    requests: list[Any] = field(default_factory=list[Any])
    kept: list[Any] = field(default_factory=list[Any])
    finish: list[Step] = field(default_factory=list[Step])


def begin(communicator: Any, rank: int, call: Call[Any]) -> Begun:
    """Begins an operation; its arguments were checked."""
    begun = Begun()
    begun.requests.append(BEGINNINGS[call.operation](communicator, rank, call, begun))
    return begun


def _barrier(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    return communicator.Ibarrier()


def _broadcast(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    return communicator.Ibcast(_buffer(call.output, call.count, call.dtype), call.root)


def _reduce(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    source = _source(call.input, call.count, call, begun)
    if rank != call.root:
        return communicator.Ireduce(source, None, dtypes.operation(call.dtype, call.reduction), call.root)
    _divide_in_the_end(communicator, call, begun)
    target = _buffer(call.output, call.count, call.dtype)
    in_place = call.input == call.output and not begun.kept
    source = load_mpi().IN_PLACE if in_place else source
    return communicator.Ireduce(source, target, dtypes.operation(call.dtype, call.reduction), call.root)


def _all_reduce(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    source = _source(call.input, call.count, call, begun)
    _divide_in_the_end(communicator, call, begun)
    if call.input == call.output and not begun.kept:
        source = load_mpi().IN_PLACE
    target = _buffer(call.output, call.count, call.dtype)
    return communicator.Iallreduce(source, target, dtypes.operation(call.dtype, call.reduction))


def _scatter(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    target = _buffer(call.output, call.count, call.dtype)
    if rank != call.root:
        return communicator.Iscatterv(None, target, call.root)
    source = _gathered_up(call.parts, call.dtype, begun)
    if not begun.kept and call.output == call.parts[rank][0]:
        target = load_mpi().IN_PLACE
    return communicator.Iscatterv(source, target, call.root)


def _gather(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    source = _buffer(call.input, call.count, call.dtype)
    if rank != call.root:
        return communicator.Igatherv(source, None, call.root)
    target = _spread_out(call.parts, call.dtype, begun)
    if not begun.kept and call.input == call.parts[rank][0]:
        source = load_mpi().IN_PLACE
    return communicator.Igatherv(source, target, call.root)


def _all_gather(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    target = _spread_out(call.parts, call.dtype, begun)
    if not begun.kept and call.input == call.parts[rank][0]:
        return communicator.Iallgatherv(load_mpi().IN_PLACE, target)
    return communicator.Iallgatherv(_buffer(call.input, call.count, call.dtype), target)


def _reduce_scatter(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    apart = _apart(call.parts, [(call.output, call.count)], call.dtype)
    address, total = _one_after_another(call.parts, call.dtype, begun, copied=True, in_place=apart)
    source = _source(address, total, call, begun)
    _divide_in_the_end(communicator, call, begun)
    counts = [count for _, count in call.parts]
    target = _buffer(call.output, call.count, call.dtype)
    return communicator.Ireduce_scatter(source, target, counts, dtypes.operation(call.dtype, call.reduction))


def _all_to_all(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    # The description of the call holds no lengths of parts: they go along.
    sent = np.array([count for _, count in call.input_parts], np.int64)
    begun.kept.append(announced := np.empty_like(sent))
    begun.requests.append(communicator.Ialltoall(sent, announced))
    begun.finish.append(lambda: _compare_lengths(call.parts, announced))
    apart = _apart(call.input_parts, call.parts, call.dtype)
    source = _gathered_up(call.input_parts, call.dtype, begun, in_place=apart)
    return communicator.Ialltoallv(source, _spread_out(call.parts, call.dtype, begun))


def _send(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    return communicator.Isend(_buffer(call.input, call.count, call.dtype), call.root, call.tag)


def _receive(communicator: Any, rank: int, call: Call[Any], begun: Begun) -> Any:
    source = load_mpi().ANY_SOURCE if call.root == ANY_SOURCE else call.root
    return communicator.Irecv(_buffer(call.output, call.count, call.dtype), source, call.tag)


BEGINNINGS: dict[Operation, Callable[[Any, int, Call[Any], Begun], Any]] = {
    Operation.BARRIER: _barrier,
    Operation.BROADCAST: _broadcast,
    Operation.REDUCE: _reduce,
    Operation.ALL_REDUCE: _all_reduce,
    Operation.SCATTER: _scatter,
    Operation.GATHER: _gather,
    Operation.ALL_GATHER: _all_gather,
    Operation.REDUCE_SCATTER: _reduce_scatter,
    Operation.ALL_TO_ALL: _all_to_all,
    Operation.SEND: _send,
    Operation.RECEIVE: _receive,
}


class LengthsDiffer(Exception):
    """Ranks disagree about the length of a part."""


def _compare_lengths(parts: Sequence[Part], announced: Any) -> None:
    for rank, (_, count) in enumerate(parts):
        if announced[rank] != count:
            raise LengthsDiffer(f"rank {rank} sends {announced[rank]} elements, and this rank expects {count}")


def _buffer(address: int, count: int, dtype: int) -> Any:
    return [dtypes.memory(address, count, dtype), count, dtypes.datatype(dtype)]


def _source(address: int, count: int, call: Call[Any], begun: Begun) -> Any:
    """Returns what a reduction sends."""
    if REDUCTIONS[call.reduction] != "premul_sum":
        return _buffer(address, count, call.dtype)
    copy = dtypes.scaled(dtypes.array(address, count, call.dtype), call.factor)
    begun.kept.append(copy)
    return _buffer(copy.ctypes.data, count, call.dtype)


def _divide_in_the_end(communicator: Any, call: Call[Any], begun: Begun) -> None:
    if REDUCTIONS[call.reduction] == "avg":
        size = communicator.Get_size()
        begun.finish.append(lambda: dtypes.divide(dtypes.array(call.output, call.count, call.dtype), size))


def _gathered_up(parts: Sequence[Part], dtype: int, begun: Begun, *, in_place: bool = True) -> Any:
    """Returns parts that are sent."""
    address, total = _one_after_another(parts, dtype, begun, copied=True, in_place=in_place)
    return _parts_of(address, total, parts, dtype)


def _spread_out(parts: Sequence[Part], dtype: int, begun: Begun) -> Any:
    """Returns parts that are received."""
    address, total = _one_after_another(parts, dtype, begun, copied=False)
    if address != _first(parts):
        begun.finish.append(lambda: _copy_parts(address, parts, dtype, outwards=True))
    return _parts_of(address, total, parts, dtype)


def _parts_of(address: int, total: int, parts: Sequence[Part], dtype: int) -> Any:
    counts = [count for _, count in parts]
    begins = [0, *accumulate(counts)][:-1]
    return [dtypes.memory(address, total, dtype), (counts, begins), dtypes.datatype(dtype)]


def _first(parts: Sequence[Part]) -> int:
    return next((address for address, count in parts if count), 0)


def _apart(ours: Sequence[Part], theirs: Sequence[Part], dtype: int) -> bool:
    """Tells whether no memory is in both, by the bounds of each."""
    (first, last), (other_first, other_last) = _bounds(ours, dtype), _bounds(theirs, dtype)
    return last <= other_first or other_last <= first


def _bounds(parts: Sequence[Part], dtype: int) -> tuple[int, int]:
    filled = [(address, address + count * dtypes.ITEM_BYTES[dtype]) for address, count in parts if count]
    return (min(begin for begin, _ in filled), max(end for _, end in filled)) if filled else (0, 0)


def _one_after_another(
    parts: Sequence[Part], dtype: int, begun: Begun, *, copied: bool, in_place: bool = True
) -> tuple[int, int]:
    """Returns address and elements of memory that holds all parts: theirs if they lie so, or else a temporary."""
    total = sum(count for _, count in parts)
    expected = _first(parts)
    for address, count in parts:
        if not in_place or (count and address != expected):
            break
        expected += count * dtypes.ITEM_BYTES[dtype]
    else:
        return _first(parts), total
    temporary = np.empty(total * dtypes.ITEM_BYTES[dtype], np.uint8)
    begun.kept.append(temporary)
    if copied:
        _copy_parts(temporary.ctypes.data, parts, dtype, outwards=False)
    return temporary.ctypes.data, total


def _copy_parts(base: int, parts: Sequence[Part], dtype: int, *, outwards: bool) -> None:
    for address, count in parts:
        length = count * dtypes.ITEM_BYTES[dtype]
        ctypes.memmove(*((address, base) if outwards else (base, address)), length)
        base += length
