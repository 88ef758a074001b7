"""The process group of the backend ``lowerkit``: reductions, movements, messages and barriers."""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lowerkit.distributed.arguments import nanoseconds
from lowerkit.distributed.copy_back import Pending
from lowerkit.distributed.data_movement import Movements
from lowerkit.distributed.dtypes import moved
from lowerkit.distributed.dynamo import leave_uncompiled
from lowerkit.distributed.reductions import Reductions
from lowerkit.distributed.work import CombinedWork, FinishedWork, PendingWork
from lowerkit.runtimes.collective.calls import ANY_SOURCE, Operation
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline

_BARRIER = int(Operation.BARRIER)
_SEND = int(Operation.SEND)
_RECEIVE = int(Operation.RECEIVE)
# After rank 0 has given up, its verdict needs a moment to be read.
_VERDICT_SECONDS = 5.0


class ProcessGroup(Reductions, Movements):
    """See :class:`lowerkit.distributed.submission.ProcessGroupBase` for the arguments.

    Attributes:
        splits: how often the group was split.
    """

    splits = 0
    _monitored = 0

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Any:
        """Sends a tensor."""
        tensor = self.only(tensors, "send")
        if (engine := self.other_engine(tensor)) is not None:
            return engine.send([tensor], dst_rank, tag)
        values = self.read(tensor)
        dtype, width = moved(tensor.dtype)
        arguments = (_SEND, dtype, values.numel() * width, values.data_ptr(), 0, 0, dst_rank, 1.0, tag)
        return self.issue(arguments, True, [tensor], values, is_message=True)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Any:
        """Receives a tensor."""
        tensor = self.only(tensors, "recv")
        if (engine := self.other_engine(tensor)) is not None:
            return engine.recv([tensor], src_rank, tag)
        pending: Pending = []
        values = self.write(tensor, pending)
        dtype, width = moved(tensor.dtype)
        arguments = (_RECEIVE, dtype, values.numel() * width, 0, values.data_ptr(), 0, src_rank, 1.0, tag)
        return self.issue(arguments, True, [tensor], values, pending, is_message=True)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives a tensor from whoever sends first; the work's ``_source_rank()`` tells who it was."""
        return self.recv(tensors, ANY_SOURCE, tag)

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Waits until all ranks are there."""
        options = opts if isinstance(opts, dist.BarrierOptions) else dist.BarrierOptions()
        limit = timeout if timeout is not None else options.timeout
        device: Any = options.device  # None where nobody chose one
        if device is not None and device.type == "cuda":
            return self.other_engine(torch.empty(0, device=device)).barrier(options)
        return self.issue((_BARRIER, 0, 0, 0, 0, 0, 0, 1.0, 0, nanoseconds(limit)), options.asyncOp)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier through the store, which works when operations do not; its error names who did not come.

        Args:
            timeout: until all ranks must be there; None: the group's.
            wait_all_ranks: name all ranks that did not come, rather than the first.

        Raises:
            DistBackendError: a rank did not come. All ranks that did raise it.
        """
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        self._monitored += 1
        prefix = f"lowerkit/monitored/{self.group.identity}/{self._monitored}"
        store = self.group.store
        if self._rank == 0:
            verdict = self._missing_ranks(prefix, seconds, wait_all_ranks)
            store.set(f"{prefix}/verdict", b"!" + verdict.encode())
            if not verdict:  # all came to this one, and had read the verdict of the one before
                store.delete(f"lowerkit/monitored/{self.group.identity}/{self._monitored - 1}/verdict")
        else:
            store.set(f"{prefix}/{self._rank}", b"1")
            try:
                verdict = store.get(f"{prefix}/verdict", seconds + _VERDICT_SECONDS)[1:].decode()
            except TimeoutError:
                verdict = f"Rank 0 timed out in monitoredBarrier after {seconds:.3g} s"
            store.delete(f"{prefix}/{self._rank}")
            if verdict:
                reached = f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting"
                verdict = f"{reached} for send/recv from rank 0: {verdict}"
        if verdict:
            raise self.failure("LK8008", f"group {self.group.name!r}: {verdict}")

    def _missing_ranks(self, prefix: str, seconds: float, wait_all_ranks: bool) -> str:
        """Waits for all ranks, as rank 0; says what is wrong, in gloo's words, or nothing."""
        if seconds <= 0:
            return f"Rank 0 timed out in monitoredBarrier after {seconds:.3g} s"
        deadline = Deadline(seconds)
        missing: list[int] = []
        for rank in range(1, self._size):
            try:
                self.group.store.get(f"{prefix}/{rank}", deadline.remaining())
            except TimeoutError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if not missing:
            return ""
        named = ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(map(str, missing))
        return f"{named} failed to pass monitoredBarrier in {seconds:.3g} s"


for _kind in (ProcessGroup, FinishedWork, PendingWork, CombinedWork):
    leave_uncompiled(_kind)
