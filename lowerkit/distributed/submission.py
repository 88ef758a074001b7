"""What all operations of the process group share: staging of tensors, issuing, errors, the group's life.

The native side reads and writes contiguous memory. A tensor that is not contiguous (or has a conjugate or negative bit)
is copied to a temporary, and back when the operation is done (``copy_back.py``); everything else is used where it lies.
"""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lowerkit.distributed.arguments import Tensors, as_list, nanoseconds
from lowerkit.distributed.capabilities import Capabilities
from lowerkit.distributed.copy_back import (
    Pending,
    PendingCopies,
    StartedMemory,
    await_writes,
    copy_back,
    is_native,
    shares_elements,
)
from lowerkit.distributed.options import Options
from lowerkit.distributed.work import CombinedWork, FinishedWork, FutureWaiters, PendingWork, backend_error
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.engine import EngineWork
from lowerkit.runtimes.collective.failures import CollectiveFault, usage
from lowerkit.runtimes.collective.group import Group

# False where torch does not offer its tensors natively: then every operation goes the longer way.
_collective.serve_tensors(torch.Tensor, torch.nn.Parameter)


class ProcessGroupBase(Capabilities):
    """Base of the process group: a native group, and how operations are given to it.

    Args:
        store: of this group, with a prefix of its own.
        group: the connected ranks.
        options: see there.
        timeout: of operations that name none.
    """

    def __init__(self, store: dist.Store, group: Group, options: Options, timeout: timedelta) -> None:
        # The constructor that subclasses in Python may call; the stubs know the other one alone.
        super().__init__(group.rank, group.size)  # pyright: ignore[reportCallIssue, reportArgumentType]
        self.group = group
        self._store = store
        self._options = options
        self._timeout = timeout
        self._native = group.native
        self._run = group.native.run
        self._run_tensors = group.native.run_tensors
        self._rank = group.rank
        self._size = group.size
        self._finished = FinishedWork()
        self._waiters = FutureWaiters(f"lowerkit group {group.name}")
        self._copies = PendingCopies(f"lowerkit group {group.name}")
        self._coalesced: list[Any] | None = None
        self._nccl: Any = None
        self._torch_name = group.name

    # Names and life.

    def getBackendName(self) -> str:  # noqa: N802 -- torch's name
        """Returns the backend's name."""
        return "lowerkit"

    def name(self) -> str:
        """Returns the backend's name."""
        return "lowerkit"

    @property
    def options(self) -> Options:
        """The group's options."""
        return self._options

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations that name none."""
        return self._timeout

    def size(self) -> int:
        """Returns the number of ranks."""
        return self._size

    def rank(self) -> int:
        """Returns this rank."""
        return self._rank

    def get_group_store(self) -> dist.Store:
        """Returns the group's store, with a prefix of its own."""
        return self._store

    def _set_default_timeout(self, timeout: timedelta) -> None:
        raise dist.DistBackendError(
            usage("the timeout of a lowerkit group is set when it is made", hint="new_group(timeout=...)").render()
        )

    def abort(self) -> None:
        """Fails everything that runs or will run in the group, on all ranks."""
        self.group.abort("abort() was called")

    def shutdown(self) -> None:
        """Ends this rank's part in the group; unfinished work fails."""
        if self._native.aborted is None and self._waiters.busy():
            self.group.abort("the group was destroyed with work in flight")
        self._waiters.close()
        self._copies.make_all()
        self.group.close()

    # Tensors.

    def other_engine(self, tensor: torch.Tensor) -> Any:
        """Returns the backend that carries operations on this tensor out, or None: we do.

        Raises:
            DistBackendError: nobody does.
        """
        if tensor.layout is not torch.strided:
            raise self.refusal(f"{tensor.layout} tensors are not communicated", "to_dense() makes them dense")
        if tensor.is_cpu:
            return None
        if tensor.device.type != "cuda" or not dist.is_nccl_available():
            raise self.refusal(
                f"tensors on {tensor.device} are not communicated here", "move them to the CPU, or install NCCL"
            )
        if self._nccl is None:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            store = dist.PrefixStore("nccl/", self._store)
            self._nccl = dist.ProcessGroupNCCL(store, self._rank, self._size, options)
        return self._nccl

    def refusal(self, problem: str, hint: str | None = None) -> dist.DistBackendError:
        """Returns the error for a call that cannot be made."""
        return dist.DistBackendError(usage(f"group {self.group.name!r}: {problem}", hint=hint).render())

    def failure(self, code: str, message: str) -> dist.DistBackendError:
        """Returns the error for ranks that failed each other."""
        return dist.DistBackendError(CollectiveFault(code, message).render())

    def only(self, tensors: torch.Tensor | Sequence[Any], operation: str) -> Any:
        """Returns the one element of a list of tensors (or of lists of tensors)."""
        if isinstance(tensors, torch.Tensor):
            return tensors
        if len(tensors) != 1:
            raise self.refusal(f"{operation} takes one tensor of each rank, not {len(tensors)}")
        return tensors[0]

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor's values in contiguous memory."""
        if self.other_engine(tensor) is not None:
            raise self.refusal("tensors of one operation are on different devices")
        self._settle([tensor], copied=not is_native(tensor))
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def write(self, tensor: torch.Tensor, pending: Pending) -> torch.Tensor:
        """Returns contiguous memory for what comes; ``pending`` says where it belongs in the end."""
        if self.other_engine(tensor) is not None:
            raise self.refusal("tensors of one operation are on different devices")
        self._settle([tensor])
        if is_native(tensor):
            return tensor
        self._check_writable(tensor)
        temporary = torch.empty(tensor.shape, dtype=tensor.dtype)
        pending.append((tensor, temporary))
        return temporary

    def update(self, tensor: torch.Tensor, pending: Pending) -> torch.Tensor:
        """Returns contiguous memory with the tensor's values that is written in place."""
        values = self.read(tensor)
        if not is_native(tensor):
            self._check_writable(tensor)
            pending.append((tensor, values))
        return values

    def _settle(self, tensors: Sequence[torch.Tensor], *, copied: bool = False) -> None:
        """Waits for results that are on their way into the memory of these tensors, which may be ``copied`` now."""
        try:
            if self._copies:
                self._copies.await_those_into(tensors)
            if copied:
                await_writes(self.group.unfinished, tensors)
        except _collective.CollectiveError as error:
            self.group.note_failure(error.args[1])
            raise backend_error(error) from error

    def _check_writable(self, tensor: torch.Tensor) -> None:
        """Refuses expanded tensors before anything is sent: torch would not copy back into them."""
        if shares_elements(tensor):
            shape, strides = tuple(tensor.shape), tensor.stride()
            raise self.refusal(
                f"the result of shape {shape} and strides {strides} has several elements in one place",
                "clone() the tensor that expand() made",
            )

    # Operations.

    def at_once(
        self,
        operation: int,
        output: torch.Tensor | Tensors | None,
        given: torch.Tensor | Tensors | None,
        timeout: timedelta | None,
        reduction: int = 0,
        root: int = 0,
    ) -> bool:
        """Runs an operation natively from the tensors on: less than half the time of the long way.

        Returns:
            False, with nothing done: the tensors need the long way; ``_collective.Group.run_tensors`` says which do.
        """
        if self._copies:
            self._settle([one for side in (output, given) if side is not None for one in as_list(side)])
        try:
            done = self._run_tensors(operation, output, given, reduction, root, nanoseconds(timeout))
            if done and self._copies:
                self._copies.make_all()
            return done
        except _collective.CollectiveError as error:
            self.group.note_failure(error.args[1])
            raise backend_error(error) from error

    def issue(
        self,
        arguments: tuple[Any, ...],
        asynchronous: bool,
        result: Sequence[torch.Tensor] = (),
        kept: Any = None,
        pending: Pending | None = None,
        *,
        is_message: bool = False,
    ) -> Any:
        """Runs or starts an operation.

        Args:
            arguments: of ``_collective.Group.run``.
            asynchronous: start it; otherwise it is done when this returns.
            result: the tensors written, as the caller knows them.
            kept: temporaries that must live until the end.
            pending: copies to make at the end.
            is_message: a send or receive.
        """
        try:
            if not asynchronous:
                self._run(*arguments)
                return self.ended(pending)
            native = self._native.start(*arguments)
        except _collective.CollectiveError as error:
            self.group.note_failure(error.args[1], (kept, result, pending))
            raise backend_error(error) from error
        return self.started(native, result, kept, pending, is_message)

    def issue_parts(
        self,
        arguments: tuple[Any, ...],
        asynchronous: bool,
        result: Sequence[torch.Tensor] = (),
        kept: Any = None,
        pending: Pending | None = None,
    ) -> Any:
        """Runs or starts an operation with parts; arguments are those of ``_collective.Group.run_parts``."""
        try:
            if not asynchronous:
                self._native.run_parts(*arguments)
                return self.ended(pending)
            native = self._native.start_parts(*arguments)
        except _collective.CollectiveError as error:
            self.group.note_failure(error.args[1], (kept, result, pending))
            raise backend_error(error) from error
        return self.started(native, result, kept, pending, False)

    def ended(self, pending: Pending | None) -> FinishedWork:
        """Copies what is pending back; returns finished work."""
        if self._copies:
            self._copies.make_all()
        if pending:
            copy_back(pending)
        return self._finished

    def started(
        self,
        native: EngineWork,
        result: Sequence[torch.Tensor],
        kept: Any,
        pending: Pending | None,
        is_message: bool,
    ) -> PendingWork:
        """Returns the handle of a started operation."""
        pending_copy = self._copies.add(native, pending, is_message=is_message) if pending else None
        memory = StartedMemory(kept, result, is_message)
        self.group.unfinished.keep(native, memory)  # the caller may drop the handle, as gloo allows
        work = PendingWork(native, result, memory, pending_copy, self._copies, self._waiters, self.group, is_message)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def together(self, works: Sequence[Any]) -> Any:
        """Returns several pieces of work as one."""
        return self._finished if all(work is self._finished for work in works) else CombinedWork(works)

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)
