"""Work handles of torch.distributed over native ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from lowerkit.distributed.copy_back import PendingCopies, PendingCopy
from lowerkit.errors import LowerkitError
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.engine import EngineWork
from lowerkit.runtimes.collective.failures import from_native
from lowerkit.runtimes.collective.group import Group


def backend_error(error: _collective.CollectiveError) -> dist.DistBackendError:
    """Returns torch's error with our message."""
    return dist.DistBackendError(from_native(*error.args).render())


def refused_call(error: LowerkitError) -> dist.DistBackendError:
    """Returns torch's error with our message, for a call that cannot be made."""
    return dist.DistBackendError(error.render())


class FinishedWork(dist.Work):
    """Work that was done before the call returned."""

    def __init__(self, result: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._result = list(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True

    def is_success(self) -> bool:
        """Returns True."""
        return True

    def exception(self) -> None:
        """Returns None."""

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors written."""
        return self._result

    def synchronize(self) -> None:
        """Does nothing: CPU tensors have no streams."""

    def get_future(self) -> Any:
        """Returns a future that is done."""
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future


class PendingWork(dist.Work):
    """An operation that goes on behind the caller.

    Args:
        native: the native handle.
        result: the tensors that the operation writes, what its future holds.
        kept: what must live until it is done.
        pending_copy: copies of results to where the caller wants them, to be made when it is done.
        copies: those of the group.
        waiters: completes futures.
        group: told what went wrong, and that the operation's memory need not be kept any longer.
        is_message: sends and receives: they do not complete in the order in which they start.
    """

    def __init__(
        self,
        native: EngineWork,
        result: Sequence[torch.Tensor],
        kept: Any,
        pending_copy: PendingCopy | None,
        copies: PendingCopies,
        waiters: FutureWaiters,
        group: Group,
        is_message: bool = False,
    ) -> None:
        super().__init__()
        self._native = native
        self._result = list(result)
        self._kept = kept
        self._pending_copy = pending_copy
        self._copies = copies
        self._waiters = waiters
        self._group = group
        self._is_message = is_message
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for its end.

        Raises:
            DistBackendError: it failed, or ``timeout`` passed; then it goes on.
        """
        nanoseconds = int(timeout.total_seconds() * 1e9) if timeout else 0
        try:
            self._native.wait(max(nanoseconds, 0))
        except _collective.CollectiveError as error:
            self._group.note_failure(error.args[1])
            failure = backend_error(error)
            self._error = failure
            raise failure from error
        self._end()
        return True

    def is_completed(self) -> bool:
        """Tells whether it ended, well or not."""
        try:
            if not self._native.test():
                return False
        except _collective.CollectiveError as error:
            self._group.note_failure(error.args[1])
            self._error = backend_error(error)
            return True
        self._end()
        return True

    def is_success(self) -> bool:
        """Tells whether it ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Returns what it failed with, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Waits; returns the tensors written."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """Waits."""
        self.wait()

    def source_rank(self) -> int:
        """Returns the rank that a finished receive came from."""
        return self._native.received[0]

    def _source_rank(self) -> int:
        return self._native.received[0]

    def get_future(self) -> Any:
        """Returns a future of the tensors written; a thread of the group completes it.

        A failure is raised by a callback: what ``Future.set_exception`` sets is a value to C++, and torch's reducer,
        which expects tensors, reads it as such and crashes.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            ended: Future[Any] = Future()
            self._future = ended.then(self._outcome)
        self._waiters.submit(self, ended, is_message=self._is_message)
        return self._future

    def failure(self) -> Exception | None:
        """Waits; returns what it failed with, or None. Called by a thread of the group."""
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def _outcome(self, ended: Future[Any]) -> list[torch.Tensor]:
        failure = ended.value()
        if failure is not None:
            raise failure
        return self._result

    def _end(self) -> None:
        with self._lock:
            pending_copy, self._pending_copy = self._pending_copy, None
            self._kept = None
        if pending_copy is not None:
            self._copies.make(pending_copy)
        if self._copies:
            self._copies.make_all()
        self._group.unfinished.forget(self._native)

    def __del__(self) -> None:
        """Somebody else has to copy the results, where nobody waited for them."""
        if self._pending_copy is not None:
            self._copies.adopt(self._pending_copy)


class CombinedWork(dist.Work):
    """Several pieces of work as one."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self._parts = list(parts)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all of them."""
        for part in self._parts:
            part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Tells whether all of them ended."""
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        """Tells whether all of them ended well."""
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        """Returns the first failure, or None."""
        return next((error for part in self._parts if (error := part.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Waits; returns the tensors written."""
        return [tensor for part in self._parts for tensor in part.result()]

    def synchronize(self) -> None:
        """Waits."""
        self.wait()

    def get_future(self) -> Any:
        """Returns a future of all tensors written."""
        collected = torch.futures.collect_all([part.get_future() for part in self._parts])
        return collected.then(lambda done: [tensor for one in done.value() for tensor in one.value()])


class FutureWaiters:
    """Threads that complete futures, and so run what hangs on them.

    One for the collectives of a group, in their order; one for each message, and for each collective that such a thread
    starts itself: a callback may wait for it (PowerSGD's do), and nothing else would complete its future meanwhile.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[PendingWork, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._place = threading.local()

    def submit(self, work: PendingWork, future: Future[Any], *, is_message: bool) -> None:
        """Completes a future when the work is done."""
        with self._lock:
            self._waiting += not is_message
        if is_message or hasattr(self._place, "completes"):
            name = f"{self._name} message" if is_message else f"{self._name} future of a callback"
            threading.Thread(target=self._complete, args=(work, future, is_message), name=name, daemon=True).start()
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{self._name} futures", daemon=True)
                self._thread.start()
        self._queue.put((work, future))

    def busy(self) -> bool:
        """Tells whether a future of a collective is waited for."""
        return self._waiting > 0

    def close(self) -> None:
        """Ends the thread after what was submitted: its works fail when their group is aborted."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._complete(*item, is_message=False)

    def _complete(self, work: PendingWork, future: Future[Any], is_message: bool) -> None:
        self._place.completes = True
        failure = work.failure()
        with self._lock:  # before anybody hears of it, and may destroy the group
            self._waiting -= not is_message
        future.set_result(failure)
