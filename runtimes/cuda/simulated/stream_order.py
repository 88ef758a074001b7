"""Launches and copies of different queues that touch the same bytes: something must order them.

A queue does its work in order. An event orders what is put into one queue behind what another one had when the event
was recorded; a ``synchronize`` orders whatever the host does afterwards. The simulated device runs everything at once,
in the order of the calls: what is missing here shows in no value, and on a card only sometimes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowerkit.runtimes.cuda.simulated.faults import KernelFault

Clock = Mapping[int, int]  # queue -> how much of its work lies before


@dataclass(frozen=True)
class Touch:
    """Bytes ``start`` to ``end`` that a launch or a copy reads, or writes; ``name`` is what messages call them."""

    start: int
    end: int
    writes: bool
    name: str


@dataclass(frozen=True)
class _Done:
    """One piece of work of a queue: its number there, and how messages call it and the bytes."""

    queue: int
    time: int
    what: str


@dataclass
class _Span:
    """Bytes from a start to the next one's: the last work that wrote them, and who read them since, by queue."""

    written: _Done | None = None
    read: dict[int, _Done] = field(default_factory=dict[int, _Done])

    def copy(self) -> _Span:
        return _Span(self.written, dict(self.read))


class StreamOrder:
    """The queues of one device, and what the last work was for each byte."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._known: dict[int, dict[int, int]] = {}
        self._host: dict[int, int] = {}
        self._starts: list[int] = [0]
        self._spans: list[_Span] = [_Span()]

    def work(self, queue: int, what: str, touches: Sequence[Touch], op: str | None = None) -> None:
        """Puts a launch or a copy into a queue.

        Args:
            queue: the queue.
            what: words for the work.
            touches: what it reads and writes.
            op: the kernel of a launch, for the fault.

        Raises:
            KernelFault: LK8017, nothing orders it behind earlier work of another queue with the same bytes.
        """
        time = self._times[queue] = self._times.get(queue, 0) + 1
        known = self._clock(queue)
        for other, when in self._host.items():  # the host puts it there after all that it has waited for
            known[other] = max(known.get(other, 0), when)
        for touch in touches:
            done = _Done(queue, time, f"{what} {'writes' if touch.writes else 'reads'} {touch.name}")
            for span in self._cut(touch.start, touch.end):
                self._check(span, known, done, touch.writes, op)
                if touch.writes:
                    span.written, span.read = done, {}
                else:
                    span.read[queue] = done

    def record(self, queue: int) -> Clock:
        """Returns what an event stands for that is recorded now."""
        return self._clock(queue) | {queue: self._times.get(queue, 0)}

    def wait(self, event: Clock, queue: int) -> None:
        """Orders what is put into ``queue`` from now on behind an event."""
        _join(self._clock(queue), event)

    def synchronize(self, queue: int) -> None:
        """The host waits for a queue."""
        _join(self._host, self.record(queue))

    def synchronize_all(self) -> None:
        """The host waits for all queues."""
        self._host = dict(self._times)

    def forget(self, start: int, end: int) -> None:
        """Nobody touches these bytes any more."""
        self._cut(start, end)
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        self._starts[first:last] = [start]
        self._spans[first:last] = [_Span()]

    def _clock(self, queue: int) -> dict[int, int]:
        return self._known.setdefault(queue, {})

    def _cut(self, start: int, end: int) -> list[_Span]:
        """Returns the spans of bytes ``start`` to ``end``, cut at both."""
        if start >= end:
            return []
        for at in (start, end):
            place = bisect_right(self._starts, at) - 1
            if self._starts[place] != at:
                self._starts.insert(place + 1, at)
                self._spans.insert(place + 1, self._spans[place].copy())
        return self._spans[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    @staticmethod
    def _check(span: _Span, known: Clock, done: _Done, writes: bool, op: str | None) -> None:
        earlier = [span.written, *span.read.values()] if writes else [span.written]
        for other in earlier:
            if other is None or other.queue == done.queue or other.time <= known.get(other.queue, 0):
                continue
            raise KernelFault(
                f"launches and copies without an order between them: {done.what} in queue {done.queue}, after "
                f"{other.what} in queue {other.queue}: neither an event nor a synchronize lies between",
                op=op,
                hint=f"record an event in queue {other.queue} behind the first, and let queue {done.queue} wait for it",
            )


def _join(clock: dict[int, int], other: Clock) -> None:
    for queue, time in other.items():
        clock[queue] = max(clock.get(queue, 0), time)
