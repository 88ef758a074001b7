"""Each operation of a compiled program as one of gloo, begun behind the caller.

Where nothing is computed gloo moves bytes, whatever they are. What gloo does not reduce is brought together and reduced
here: for an all_reduce every rank gathers all inputs, which is as much as a ring moves with two ranks, and more beyond.

A message is preceded by its number of bytes: gloo itself ends a process that is sent more than it expects. Each message
between two ranks has a tag of its own.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
)

from lowerkit.distributed.gloo.reductions import ITEM_BYTES, of_gloo, reduce_parts
from lowerkit.runtimes.collective.calls import Call, Operation, Part

_LEAST_WAIT = 0.001
_TAGS = 1 << 29


class SizesDiffer(Exception):
    """A rank sent another number of bytes than this one expects."""


class Pending(Protocol):
    """What gloo has not ended yet."""

    def ended(self, seconds: float) -> bool:
        """Waits for so long; tells whether it has ended well.

        Raises:
            RuntimeError: gloo failed.
            SizesDiffer: as it says.
        """
        ...


@dataclass
class Begun:
    """An operation under way.

    Attributes:
        pending: what is waited for.
        kept: memory that lives until then.
        finish: what is left to do then.
        received: source and bytes of a receive.
    """

    pending: Pending
    kept: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    finish: Callable[[], None] | None = None
    received: tuple[int, int] = (-1, 0)


class _Collective:
    """Work of gloo whose wait may be given up and taken up again."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def ended(self, seconds: float) -> bool:
        """See :class:`Pending`."""
        if seconds < _LEAST_WAIT and not self._work.is_completed():
            return False
        try:
            self._work.wait(timedelta(seconds=max(seconds, _LEAST_WAIT)))
        except RuntimeError:
            if self._work.is_completed():
                raise
            return False
        return True


class _Message:
    """A thread that waits for a message: where such a wait is given up, gloo gives all connections up."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._ended = threading.Event()
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="lowerkit message", daemon=True).start()

    def ended(self, seconds: float) -> bool:
        """See :class:`Pending`."""
        if not self._ended.wait(seconds):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _run(self) -> None:
        try:
            self._wait()
        except Exception as error:
            self._failure = error
        self._ended.set()


class Operations:
    """Begins the operations of one group.

    Args:
        backend: ``ProcessGroupGloo``.
        rank, size: of this rank and of the group.
        seconds: that gloo itself waits for others.
    """

    def __init__(self, backend: Any, rank: int, size: int, seconds: float) -> None:
        self._backend, self._rank, self._size = backend, rank, size
        self._limit = timedelta(seconds=seconds)
        self._messages: dict[tuple[Operation, int], int] = {}

    def begin(self, call: Call[Any]) -> Begun:
        """Begins an operation, whose arguments were checked."""
        match call.operation:
            case Operation.BARRIER:
                return Begun(_Collective(self._backend.barrier(dist.BarrierOptions())))
            case Operation.BROADCAST:
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = call.root, 0
                tensor = _bytes(call.output, call.count * ITEM_BYTES[call.dtype])
                return Begun(_Collective(self._backend.broadcast([tensor], options)))
            case Operation.REDUCE:
                return self._reduce(call)
            case Operation.ALL_REDUCE:
                return self._all_reduce(call)
            case Operation.ALL_GATHER:
                return self._all_gather(call)
            case Operation.REDUCE_SCATTER:
                return self._reduce_scatter(call)
            case Operation.SEND | Operation.RECEIVE:
                return self._message(call)
            case _:
                size = self._size * call.input_parts[0][1] * ITEM_BYTES[call.dtype]
                given, taken = _bytes(call.input_parts[0][0], size), _bytes(call.parts[0][0], size)
                return Begun(_Collective(self._backend.alltoall_base(taken, given, [], [], AllToAllOptions())))

    def _reduce(self, call: Call[Any]) -> Begun:
        size = call.count * ITEM_BYTES[call.dtype]
        options = dist.GatherOptions()
        options.rootRank = call.root
        given = _bytes(call.input, size)
        if self._rank != call.root:
            return Begun(_Collective(self._backend.gather([], [given], options)))
        whole = _memory(size * self._size)
        parts = _parts(whole, size, self._size)
        return self._reduced(_Collective(self._backend.gather([parts], [given], options)), whole, call)

    def _all_reduce(self, call: Call[Any]) -> Begun:
        size = call.count * ITEM_BYTES[call.dtype]
        given = _bytes(call.input, size)
        if (known := of_gloo(call.dtype, call.reduction)) is None:
            whole = _memory(size * self._size)
            parts = _parts(whole, size, self._size)
            return self._reduced(
                _Collective(self._backend.allgather([parts], [given], AllgatherOptions())), whole, call
            )
        taken = _bytes(call.output, size)
        if call.input != call.output:
            taken.copy_(given)
        options = dist.AllreduceOptions()
        options.reduceOp = known[1]
        return Begun(_Collective(self._backend.allreduce([taken.view(known[0])], options)))

    def _all_gather(self, call: Call[Any]) -> Begun:
        size = call.count * ITEM_BYTES[call.dtype]
        parts = [_bytes(address, size) for address, _ in call.parts]
        given = _bytes(call.input, size)
        return Begun(_Collective(self._backend.allgather([parts], [given], AllgatherOptions())))

    def _reduce_scatter(self, call: Call[Any]) -> Begun:
        size = call.count * ITEM_BYTES[call.dtype] * self._size
        given, whole = _bytes(call.parts[0][0], size), _memory(size)
        work = self._backend.alltoall_base(whole, given, [], [], AllToAllOptions())
        return self._reduced(_Collective(work), whole, call)

    def _reduced(self, pending: Pending, whole: torch.Tensor, call: Call[Any]) -> Begun:
        def finish() -> None:
            reduce_parts(whole, self._size, call.output, call.count, call.dtype, call.reduction)

        return Begun(pending, [whole], finish)

    def _message(self, call: Call[Any]) -> Begun:
        size, peer = call.count * ITEM_BYTES[call.dtype], call.root
        number = self._messages.get((call.operation, peer), 0)
        self._messages[call.operation, peer] = number + 1
        tag = 2 * (number % _TAGS)
        head = torch.from_numpy(np.array([size], np.int64))
        backend, limit = self._backend, self._limit
        if call.operation == Operation.SEND:
            body = _bytes(call.input, size)
            works = [backend.send([each], peer, tag + turn) for turn, each in enumerate((head, body)) if each.numel()]

            def sent() -> None:
                for work in works:
                    work.wait(limit)

            return Begun(_Message(sent), [head, body])
        body, first = _bytes(call.output, size), backend.recv([head], peer, tag)

        def received() -> None:
            first.wait(limit)
            if int(head) != size:
                raise SizesDiffer(f"rank {peer} sends {int(head)} bytes, this rank expects {size}")
            if size:
                backend.recv([body], peer, tag + 1).wait(limit)

        return Begun(_Message(received), [head, body], received=(peer, size))


def lie_in_one(parts: Sequence[Part], dtype: int) -> bool:
    """Tells whether parts are equally long and lie one behind the other."""
    first, count = parts[0] if parts else (0, 0)
    step = count * ITEM_BYTES[dtype]
    return all(part == (first + step * number, count) for number, part in enumerate(parts))


def _bytes(address: int, size: int) -> torch.Tensor:
    """Returns memory as a tensor of bytes."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _memory(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def _parts(whole: torch.Tensor, size: int, count: int) -> list[torch.Tensor]:
    return [whole[number * size : (number + 1) * size] for number in range(count)]
