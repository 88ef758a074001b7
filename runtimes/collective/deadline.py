"""One point in time that a chain of waits shares."""

from __future__ import annotations

import time


class Deadline:
    """A point in time, ``timeout`` seconds from now. Raises nothing by itself: who waits asks what remains."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def expired(self) -> bool:
        """Tells whether nothing is left."""
        return time.monotonic() >= self._end

    def sooner(self, timeout: float) -> Deadline:
        """Returns a deadline ``timeout`` seconds from now, but not after this one."""
        return Deadline(min(timeout, self.remaining()))
