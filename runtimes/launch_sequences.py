"""Launches that follow one another on a device, as graphs: what ran once in some order is captured when it comes again.

Vocabulary
    call       a launch, or a copy within the device's memory
    sequence   calls between two copies from or to the host, with their addresses and dims
    graph      what a device makes of a sequence, to be launched as one

Steps: the calls of a first run go to the device one by one, and are remembered as a sequence. Where a later run begins
like a known sequence, its calls wait until the sequence is whole, which then is one graph; where it goes on otherwise
(a branch, a loop, other sizes), those that waited are made one by one, in order. Host code cannot look at the device's
memory but by copies, and in front of those nothing waits.

A device may move memory of its own (temporaries of launches, which grow) and counts that (its epoch). A sequence is
captured only where all its calls were made one by one since: then nothing has to grow within a capture, where memory
can be neither allocated nor given back. A graph of an earlier epoch is given back, never launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lowerkit.runtimes.device import Device
from lowerkit.runtimes.on_device.values import NamedCall, naming

_MOST_KEPT = 64
_LEAST_CALLS = 2
_COPY = -1  # stands for the number of a kernel

Ask = Callable[..., Any]
Key = tuple[int, tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class _Call:
    """A launch, where ``number`` is that of the kernel, by which programs are equal; or a copy: addresses, bytes.

    ``named`` is the step that it is, for devices that follow values: there steps of one kernel are not equal.
    """

    number: int
    program: Any
    addresses: tuple[int, ...]
    dims: tuple[int, ...]
    named: NamedCall | None = None

    @property
    def key(self) -> Key:
        return self.number, self.addresses, self.dims, -1 if self.named is None else self.named.number


@dataclass
class _Sequence:
    """Calls in order, the epoch of the device when they were made one by one, and the graph of them once captured."""

    calls: list[_Call]
    epoch: int
    graph: Any = None

    @property
    def key(self) -> tuple[Key, ...]:
        return tuple(call.key for call in self.calls)


class LaunchSequences:
    """The launches of one session on one device, and the copies within its memory."""

    def __init__(self, device: Device, ask: Ask, queue: int) -> None:
        """``ask(method, *arguments)`` calls a method of the device."""
        self.enabled = device.captures
        self._device, self._ask, self._queue = device, ask, queue
        self._copies_in_graphs = device.captures_copies
        self._known: dict[tuple[Key, ...], _Sequence] = {}  # the one that was used last is the last one
        self._expected: list[_Sequence] = []  # those that begin as what waits
        self._waiting: list[_Call] = []
        self._made: list[_Call] = []

    def launch(
        self, number: int, program: Any, addresses: Sequence[int], dims: Sequence[int], named: NamedCall | None = None
    ) -> None:
        """Makes a launch, now or as part of a graph."""
        self._put(_Call(number, program, tuple(addresses), tuple(dims), named))

    def copy(self, target: int, source: int, size: int, named: NamedCall | None = None) -> None:
        """Copies bytes from one address of the device to another, now or as part of a graph."""
        call = _Call(_COPY, None, (target, source), (size,), named)
        if self._copies_in_graphs:
            self._put(call)
        else:
            self.flush()
            self._do(call)

    def flush(self) -> None:
        """Makes what waits, and remembers what was made since the last call."""
        self._make_waiting()
        made, self._made = self._made, []
        if len(made) >= _LEAST_CALLS:
            sequence = _Sequence(made, self._device.epoch)
            self._forget(sequence.key)
            self._known[sequence.key] = sequence
            if len(self._known) > _MOST_KEPT:
                self._forget(next(iter(self._known)))

    def drop(self) -> None:
        """Forgets what waits: the run has failed."""
        self._expected, self._waiting, self._made = [], [], []

    def clear(self) -> None:
        """Gives all graphs back: addresses in them will be of no more use."""
        self.drop()
        for key in list(self._known):
            self._forget(key)

    def _put(self, call: _Call) -> None:
        if not self.enabled:
            self._do(call)
            return
        if not self._waiting and not self._made:
            self._expected = list(self._known.values())
        place = len(self._waiting)
        going = [each for each in self._expected if len(each.calls) > place and each.calls[place].key == call.key]
        if going:
            self._expected = going
            self._waiting.append(call)
            if len(going) == 1 and len(going[0].calls) == len(self._waiting):
                self._launch_graph(going[0])
            return
        self._make_waiting()
        self._do(call)
        self._made.append(call)

    def _do(self, call: _Call) -> None:
        with naming(self._device, call.named):
            self._ask_for(call)

    def _ask_for(self, call: _Call) -> None:
        if call.number == _COPY:
            self._ask(self._device.copy, *call.addresses, *call.dims, self._queue)
        else:
            self._ask(self._device.launch, call.program, call.addresses, call.dims, self._queue)

    def _make_waiting(self) -> None:
        whole = next((each for each in self._expected if len(each.calls) == len(self._waiting)), None)
        if whole is not None:  # a longer one was expected as well
            self._launch_graph(whole)
            return
        waiting, self._waiting, self._expected = self._waiting, [], []
        for call in waiting:
            self._do(call)
            self._made.append(call)

    def _launch_graph(self, sequence: _Sequence) -> None:
        self._waiting, self._expected = [], []
        self._known[sequence.key] = self._known.pop(sequence.key)
        if sequence.epoch != self._device.epoch:
            graph, sequence.graph = sequence.graph, None
            if graph is not None:
                self._ask(self._device.destroy_graph, graph)
            for call in sequence.calls:
                self._do(call)
            sequence.epoch = self._device.epoch
            return
        if sequence.graph is None:
            sequence.graph = self._capture(sequence)
        self._ask(self._device.launch_graph, sequence.graph, self._queue)

    def _capture(self, sequence: _Sequence) -> Any:
        self._ask(self._device.begin_capture, self._queue)
        try:
            for call in sequence.calls:
                self._do(call)
        except BaseException:
            with suppress(Exception):  # what ended it is said, not what follows from that
                self._ask(self._device.destroy_graph, self._ask(self._device.end_capture, self._queue))
            raise
        return self._ask(self._device.end_capture, self._queue)

    def _forget(self, key: tuple[Key, ...]) -> None:
        sequence = self._known.pop(key, None)
        if sequence is not None and sequence.graph is not None:
            self._ask(self._device.destroy_graph, sequence.graph)
