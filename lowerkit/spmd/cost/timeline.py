"""When each piece of work of one rank runs: computation in one lane, collectives in a lane for each axis.

Steps, in program order: computation begins when what was before it has ended; a collective begins at its start, when
the lane of its axis is free; a done waits until it has ended. What stands between start and done runs meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A piece of time.

    Attributes:
        start, seconds: when it begins, from the start of the run, and how long it is.
        waited: how long computation stood still for it.
    """

    start: float
    seconds: float
    waited: float = 0.0

    @property
    def end(self) -> float:
        """When it is over."""
        return self.start + self.seconds


class Clock:
    """Places work in time.

    Attributes:
        now: when computation goes on.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._free: defaultdict[str, float] = defaultdict(float)
        self._pending: dict[Hashable, Span] = {}

    def copy(self) -> Clock:
        """Returns a clock that shows the same and goes on by itself."""
        other = Clock()
        other.now, other._pending = self.now, dict(self._pending)
        other._free.update(self._free)
        return other

    def compute(self, seconds: float) -> Span:
        """Runs computation."""
        span = Span(self.now, seconds)
        self.now = span.end
        return span

    def begin(self, key: Hashable, axis: str, seconds: float, ready: float = 0.0) -> Span:
        """Begins a collective along ``axis``, not before ``ready``."""
        span = self._pending[key] = Span(max(self.now, self._free[axis], ready), seconds)
        self._free[axis] = span.end
        return span

    def wait(self, key: Hashable) -> Span:
        """Waits for the collective that was begun with ``key``; returns its span with what was waited."""
        span = self._pending.pop(key)
        waited = max(0.0, span.end - self.now)
        self.now += waited
        return Span(span.start, span.seconds, waited)
