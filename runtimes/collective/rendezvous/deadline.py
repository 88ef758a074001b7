"""One point in time that a chain of waits shares."""

from __future__ import annotations

import time
from collections.abc import Callable

NANOSECONDS = 1_000_000_000
"""Of a second: the native side takes times in nanoseconds."""


class Deadline:
    """A point in time, ``timeout`` seconds from now. Raises nothing by itself: who waits asks what remains.

    Attributes:
        timeout: seconds, as asked for.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout = timeout
        self._clock = clock
        self._end = clock() + timeout

    def remaining(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - self._clock())

    def expired(self) -> bool:
        """Tells whether nothing is left."""
        return self._clock() >= self._end

    def sooner(self, timeout: float) -> Deadline:
        """Returns a deadline ``timeout`` seconds from now, but not after this one."""
        return Deadline(min(timeout, self.remaining()), self._clock)
