"""An operation that gloo carries out, on its way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lowerkit.distributed.gloo.operations import Begun, SizesDiffer
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.call_engine import Record, ended
from lowerkit.runtimes.collective.failures import Status
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS

if TYPE_CHECKING:
    from lowerkit.distributed.gloo.group import GlooGroup

_LOOK_SECONDS = 0.25
"""So often a rank that waits looks for a signal, and whether others have given up."""


class GlooWork:
    """See :class:`lowerkit.runtimes.collective.engine.EngineWork`.

    Args:
        what: the operation, its number, group and rank, for messages.
        begun: it.
        limit: nanoseconds until it must be over.
        record: of the flight recorder, completed in the end.
        group: knows who is to blame.
    """

    def __init__(self, what: str, begun: Begun, limit: int, record: Record, group: GlooGroup) -> None:
        self._what = what
        self._begun: Begun | None = begun
        self._limit = limit
        self._deadline = time.monotonic() + limit / NANOSECONDS
        self._record = record
        self._group = group
        self._failure: tuple[Status, str] | None = None
        self._received = begun.received

    def test(self) -> bool:
        """Tells whether it is done.

        Raises:
            CollectiveError: it failed.
        """
        return self._advance(0.0)

    def wait(self, timeout: int = 0) -> None:
        """Waits for its end.

        Args:
            timeout: nanoseconds; 0: the operation's own. When it passes the operation goes on.

        Raises:
            CollectiveError: it failed, or the time passed.
        """
        end = time.monotonic() + timeout / NANOSECONDS if timeout else self._deadline
        while not self._advance(min(_LOOK_SECONDS, max(end - time.monotonic(), 0.0))):
            if (reason := self._group.look()) is not None:
                self._fail(Status.ABORTED, f"the group was aborted: {reason}")
            elif time.monotonic() >= self._deadline:
                self._fail(*self._group.blame(Status.TIMEOUT, f"within {self._limit / NANOSECONDS:.3g} s"))
            elif time.monotonic() >= end:
                message = f"{self._what} is not done within {timeout / NANOSECONDS:.3g} s; it goes on"
                raise _collective.CollectiveError(int(Status.TIMEOUT), message)

    @property
    def received(self) -> tuple[int, int]:
        """Source rank and bytes of a finished receive."""
        return self._received

    @property
    def pending(self) -> bool:
        """Tells whether gloo may still use the operation's memory."""
        return self._begun is not None

    def _advance(self, seconds: float) -> bool:
        if self._failure is None and self._begun is not None:
            try:
                if not self._begun.pending.ended(seconds):
                    return False
                if self._begun.finish is not None:
                    self._begun.finish()
                self._begun = None
                ended(self._record, Status.OK)
            except SizesDiffer as error:
                self._fail(Status.DESYNC, str(error))
            except RuntimeError as error:
                self._fail(*self._group.blame(Status.PEER_LOST, f"gloo failed: {error}"))
        if self._failure is not None:
            raise _collective.CollectiveError(int(self._failure[0]), self._failure[1])
        return True

    def _fail(self, status: Status, problem: str) -> None:
        self._failure = (status, f"{self._what}: {problem}")
        ended(self._record, status)
        self._group.failed(self._failure[1])
