"""Results that are on their way back into tensors which the native side cannot write.

A tensor that is not contiguous (or has a conjugate or negative bit) gets its result by a copy when the operation is
done. Who waits for the operation makes it; but a handle may be dropped, and then it is made

* by whichever operation of the group ends next, for operations end in order: after a barrier all results are there;
* else by a thread that looks after operations without a handle.

An operation on memory that a result is still on its way to waits for it, also for a copy that another thread has begun.
And what is copied before an operation waits for those that write it: contiguous tensors behave so by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.engine import EngineWork
from lowerkit.runtimes.collective.keep_alive import Unfinished

# Tensors, and temporaries with what they are to hold in the end.
Pending = list[tuple[torch.Tensor, torch.Tensor]]

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


def copy_back(pending: Pending) -> None:
    """Copies temporaries to where their values belong."""
    with torch.no_grad():
        for tensor, temporary in pending:
            tensor.copy_(temporary)


@dataclass(frozen=True)
class StartedMemory:
    """What a started operation reads and writes.

    Attributes:
        kept: temporaries.
        written: the tensors written, as the caller knows them.
        is_message: a send or receive.
    """

    kept: Any
    written: Sequence[torch.Tensor]
    is_message: bool


def await_writes(unfinished: Unfinished, tensors: Sequence[torch.Tensor]) -> None:
    """Waits for started operations, other than messages, that write memory of tensors about to be copied.

    Raises:
        CollectiveError: such an operation failed.
    """
    for native, memory in unfinished.under_way():
        if isinstance(memory, StartedMemory) and not memory.is_message and _share_storage(memory.written, tensors):
            native.wait()


def is_native(tensor: torch.Tensor) -> bool:
    """Tells whether the native side can read and write a tensor where it lies."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def shares_elements(tensor: torch.Tensor) -> bool:
    """Tells whether several elements of a strided tensor lie in one place."""
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0  # of the dimensions before: the largest distance of two elements
    for stride, size in dims:
        if stride <= reach or stride == 0:
            break
        reach += stride * (size - 1)
    else:
        return False
    if tensor.numel() == 0:
        return False
    if dims[0][0] == 0:
        return True
    # Strides of as_strided may interleave without meeting.
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in dims:
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.unique().numel() < places.numel()


def _share_storage(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    storages = {tensor.untyped_storage().data_ptr() for tensor in some}
    return any(tensor.untyped_storage().data_ptr() in storages for tensor in others)


class PendingCopy:
    """The copies of one started operation, made once.

    Args:
        native: the operation.
        pending: the copies.
        is_message: a send or receive: others do not end after it.
    """

    def __init__(self, native: EngineWork, pending: Pending, *, is_message: bool) -> None:
        self.native = native
        self.is_message = is_message
        self.is_orphan = False
        self._pending = pending
        self._lock = threading.Lock()

    def make(self) -> None:
        """Makes the copies, of an operation that is done; a second call does nothing."""
        with self._lock:
            pending, self._pending = self._pending, []
            copy_back(pending)

    def meets(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Tells whether one of these lies in the same storage as a result that is not there yet."""
        with self._lock:  # while another thread copies, results are neither pending nor there
            return _share_storage((tensor for tensor, _ in self._pending), tensors)


class PendingCopies:
    """The results of a group that are on their way back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[int, PendingCopy] = {}  # in the order of their starts
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, native: EngineWork, pending: Pending, *, is_message: bool) -> PendingCopy:
        """Takes on the copies of an operation that was started."""
        one = PendingCopy(native, pending, is_message=is_message)
        with self._lock:
            self._open[id(one)] = one
        return one

    def make(self, one: PendingCopy) -> None:
        """Makes the copies of an operation that is done."""
        one.make()
        with self._lock:
            self._open.pop(id(one), None)

    def make_all(self) -> None:
        """Makes the copies of all operations that are done, and forgets those that failed."""
        with self._lock:
            ones = list(self._open.values())
        for one in ones:
            try:
                if one.native.test():
                    self.make(one)
            except _collective.CollectiveError:
                with self._lock:
                    self._open.pop(id(one), None)

    def await_those_into(self, tensors: Sequence[torch.Tensor]) -> None:
        """Makes the copies into the memory of these tensors, when their operations are done.

        Messages are not waited for: what they bring need not come before what these tensors are wanted for.
        """
        with self._lock:
            ones = list(self._open.values())
        for one in ones:
            if not one.is_message and one.meets(tensors):
                one.native.wait()
                self.make(one)

    def adopt(self, one: PendingCopy) -> None:
        """Looks after an operation whose handle was dropped."""
        with self._lock:
            if id(one) not in self._open:
                return
            one.is_orphan = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name=f"{self._name} results", daemon=True)
                self._thread.start()

    def _look_after(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            before = len(self._open)
            self.make_all()
            pause = _FIRST_PAUSE if len(self._open) < before else min(2 * pause, _LONGEST_PAUSE)
            with self._lock:
                if not any(one.is_orphan for one in self._open.values()):
                    self._thread = None
                    return
            time.sleep(pause)
