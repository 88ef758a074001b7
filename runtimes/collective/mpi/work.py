"""An operation that MPI carries out, on its way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.call_engine import Record, ended
from lowerkit.runtimes.collective.failures import Status
from lowerkit.runtimes.collective.mpi.library import load_mpi
from lowerkit.runtimes.collective.mpi.operations import Begun, LengthsDiffer

# MPI moves data while it is asked whether it is done. Who waits asks all the time at first, and then now and then.
_EAGER_TURNS = 2000
_PAUSE_SECONDS = 50e-6


class MpiWork:
    """See :class:`lowerkit.runtimes.collective.engine.EngineWork`.

    Args:
        what: the operation, its number, group and rank, for messages.
        begun: its requests.
        agreement: the request that gathers the descriptions of all ranks' calls, or None: a message.
        disagreement: what is wrong with them when they have come.
        limit: nanoseconds until it must be over, anew from when somebody waits for it, since MPI moves data only while
            it is asked; passing it aborts the group.
        expected: bytes of a message that is received.
        record: of the flight recorder, completed in the end.
        aborted: why the group was aborted, or None.
        abort: aborts the group.
    """

    def __init__(
        self,
        what: str,
        begun: Begun,
        agreement: Any,
        disagreement: Callable[[], str | None],
        limit: int,
        expected: int | None,
        record: Record,
        aborted: Callable[[], str | None],
        abort: Callable[[str], None],
    ) -> None:
        self._what = what
        self._begun: Begun | None = begun
        self._agreement = agreement
        self._disagreement = disagreement
        self._limit = limit
        self._deadline = time.monotonic_ns() + limit
        self._expected = expected
        self._record = record
        self._aborted = aborted
        self._abort = abort
        self._failure: tuple[Status, str] | None = None
        self._received = (-1, 0)
        self._lock = threading.Lock()  # MPI forbids asking for one request from two threads

    def test(self) -> bool:
        """Tells whether it is done.

        Raises:
            CollectiveError: it failed.
        """
        with self._lock:
            if self._begun is not None and self._failure is None:
                self._advance(self._begun)
            if self._failure is not None:
                raise _collective.CollectiveError(int(self._failure[0]), self._failure[1])
            return self._begun is None

    def wait(self, timeout: int = 0) -> None:
        """Waits for its end.

        Args:
            timeout: nanoseconds; 0: the operation's own. When it passes the operation goes on.

        Raises:
            CollectiveError: it failed, or the time passed.
        """
        now = time.monotonic_ns()
        end = now + timeout if timeout else None
        if end is None:
            self._deadline = max(self._deadline, now + self._limit)
        turns = 0
        while not self.test():
            if end is not None and time.monotonic_ns() >= end:
                message = f"{self._what} is not done within {timeout / 1e9:.3g} s; it goes on"
                raise _collective.CollectiveError(int(Status.TIMEOUT), message)
            turns += 1
            if turns < _EAGER_TURNS:
                os.sched_yield()
            else:
                time.sleep(_PAUSE_SECONDS)

    @property
    def received(self) -> tuple[int, int]:
        """Source rank and bytes of a finished receive."""
        return self._received

    @property
    def pending(self) -> bool:
        """Tells whether MPI may still use the operation's memory."""
        return self._begun is not None

    def _advance(self, begun: Begun) -> None:
        try:
            if self._agreement is not None and self._agreement.Test():
                self._agreement = None
                if (problem := self._disagreement()) is not None:
                    return self._fail(Status.DESYNC, problem)
            while begun.requests and self._agreement is None and self._tested(begun.requests[-1]):
                begun.requests.pop()
            if not begun.requests and self._failure is None:
                for step in begun.finish:
                    step()
                self._begun = None
                ended(self._record, Status.OK)
                return None
        except LengthsDiffer as error:
            return self._fail(Status.DESYNC, str(error))
        except load_mpi().Exception as error:
            truncated = error.Get_error_class() == load_mpi().ERR_TRUNCATE
            problem = "another rank sent more than this one expects" if truncated else f"MPI failed: {error}"
            return self._fail(Status.DESYNC if truncated else Status.PEER_LOST, problem)
        if self._failure is not None:
            return None
        if (reason := self._aborted()) is not None:
            return self._fail(Status.ABORTED, f"the group was aborted: {reason}")
        if time.monotonic_ns() >= self._deadline:
            return self._fail(Status.TIMEOUT, "not done in time; MPI does not tell which rank is missing")
        return None

    def _tested(self, request: Any) -> bool:
        status = load_mpi().Status()
        if not request.Test(status):
            return False
        if self._expected is not None:
            self._received = (status.Get_source(), status.Get_count(load_mpi().BYTE))
            if self._received[1] != self._expected:
                sizes = f"sent {self._received[1]} bytes, and this rank expects {self._expected}"
                self._fail(Status.DESYNC, f"rank {self._received[0]} {sizes}")
        return True

    def _fail(self, status: Status, problem: str) -> None:
        self._failure = (status, f"{self._what}: {problem}")
        ended(self._record, status)
        if status != Status.ABORTED:
            self._abort(self._failure[1])
