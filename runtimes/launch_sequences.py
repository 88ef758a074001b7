"""Launches that follow one another on a device, as graphs: what ran once in some order is captured when it comes again.

Vocabulary
    sequence   launches between two copies of a run, with their addresses and dims
    graph      what a device makes of a sequence, to be launched as one

Steps: the launches of a first run go to the device one by one, and are remembered as a sequence. Where a later run
begins like a known sequence, its launches wait until the sequence is whole, which then is one graph; where it goes on
otherwise (a branch, a loop, other sizes), those that waited are made one by one, in order. Host code cannot look at the
device's memory but by copies, and in front of those nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.runtimes.device import Device

_MOST_KEPT = 64
_LEAST_CALLS = 2

Ask = Callable[..., Any]


@dataclass(frozen=True)
class _Call:
    """One launch; ``number`` is that of the kernel, by which programs are equal."""

    number: int
    program: Any
    addresses: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return self.number, self.addresses, self.dims


@dataclass
class _Sequence:
    """Launches in order, the graph of them once there is one, and the epoch of the device that it is of."""

    calls: list[_Call]
    graph: Any = None
    epoch: int = 0


class LaunchSequences:
    """The launches of one session on one device."""

    def __init__(self, device: Device, ask: Ask, queue: int) -> None:
        """``ask(method, *arguments)`` calls a method of the device."""
        self.enabled = device.captures
        self._device, self._ask, self._queue = device, ask, queue
        self._known: dict[tuple[object, ...], _Sequence] = {}
        self._expected: _Sequence | None = None
        self._waiting: list[_Call] = []
        self._made: list[_Call] = []

    def launch(self, number: int, program: Any, addresses: Sequence[int], dims: Sequence[int]) -> None:
        """Makes a launch, now or as part of a graph."""
        if not self.enabled:
            self._ask(self._device.launch, program, addresses, dims, self._queue)
            return
        call = _Call(number, program, tuple(addresses), tuple(dims))
        if not self._waiting and not self._made:
            self._expected = self._known.get(call.key)
        if self._expected is not None:
            if call.key == self._expected.calls[len(self._waiting)].key:
                self._waiting.append(call)
                if len(self._waiting) == len(self._expected.calls):
                    self._launch_graph(self._expected)
                return
            self._make_waiting()
        self._make(call)

    def flush(self) -> None:
        """Makes what waits, and remembers what was made since the last call."""
        self._make_waiting()
        made, self._made = self._made, []
        if len(made) >= _LEAST_CALLS:
            self._forget(made[0].key)
            self._known[made[0].key] = _Sequence(made)
            if len(self._known) > _MOST_KEPT:
                self._forget(next(iter(self._known)))

    def drop(self) -> None:
        """Forgets what waits: the run has failed."""
        self._expected, self._waiting, self._made = None, [], []

    def clear(self) -> None:
        """Gives all graphs back: addresses in them will be of no more use."""
        self.drop()
        for key in list(self._known):
            self._forget(key)

    def _make(self, call: _Call) -> None:
        self._ask(self._device.launch, call.program, call.addresses, call.dims, self._queue)
        self._made.append(call)

    def _make_waiting(self) -> None:
        waiting, self._waiting, self._expected = self._waiting, [], None
        for call in waiting:
            self._make(call)

    def _launch_graph(self, sequence: _Sequence) -> None:
        self._waiting, self._expected = [], None
        if sequence.graph is not None and sequence.epoch != self._device.epoch:
            self._ask(self._device.destroy_graph, sequence.graph)
            sequence.graph = None
        if sequence.graph is None:
            self._ask(self._device.begin_capture, self._queue)
            try:
                for call in sequence.calls:
                    self._ask(self._device.launch, call.program, call.addresses, call.dims, self._queue)
            finally:
                graph = self._ask(self._device.end_capture, self._queue)
            sequence.graph, sequence.epoch = graph, self._device.epoch
        self._ask(self._device.launch_graph, sequence.graph, self._queue)

    def _forget(self, key: tuple[object, ...]) -> None:
        sequence = self._known.pop(key, None)
        if sequence is not None and sequence.graph is not None:
            self._ask(self._device.destroy_graph, sequence.graph)
