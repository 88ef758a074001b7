"""A group whose operations MPI carries out."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.call_engine import MESSAGES, CallEngine, Record
from lowerkit.runtimes.collective.calls import Call, Operation
from lowerkit.runtimes.collective.failures import Status
from lowerkit.runtimes.collective.mpi.call_matching import LENGTH, described, disagreement
from lowerkit.runtimes.collective.mpi.dtypes import ITEM_BYTES
from lowerkit.runtimes.collective.mpi.library import load_mpi
from lowerkit.runtimes.collective.mpi.operations import begin
from lowerkit.runtimes.collective.mpi.validation import complaints
from lowerkit.runtimes.collective.mpi.work import MpiWork


class MpiGroup(CallEngine):
    """See :class:`lowerkit.runtimes.collective.engine.EngineGroup`, and ``_collective.pyi`` for the arguments.

    MPI cannot take an operation back, nor tell who is missing: a rank that fails, by its deadline for instance, aborts
    the group on this rank alone, and memory of unfinished operations is kept until the process ends. MPI ends the job
    when a rank dies.

    Args:
        name: of the group.
        communicator: of its ranks, in their order; taken over.
        timeout: nanoseconds that an operation may take where it does not name its own.
    """

    def __init__(self, name: str, communicator: Any, timeout: int) -> None:
        super().__init__(name, communicator.Get_rank(), timeout)
        self._communicator = communicator
        self._size: int = communicator.Get_size()
        self._most_tag: int = communicator.Get_attr(load_mpi().TAG_UB)
        self._unfinished: list[tuple[MpiWork, Any]] = []

    def close(self) -> None:
        """Gives the communicator back, unless MPI still works on it; unfinished operations fail."""
        if self._closed:
            return
        self._closed = True
        self._forget_finished()
        if self._unfinished:
            self.abort("the group was closed with operations in flight")
            _abandoned.extend(self._unfinished)
        elif self._aborted is None and not load_mpi().Is_finalized():
            self._communicator.Free()

    def check(self, call: Call[Any], what: str) -> None:
        """Raises CollectiveError where a call cannot be made."""
        if problems := complaints(call, self._rank, self._size, self._most_tag):
            raise _collective.CollectiveError(int(Status.INVALID), f"{what}: {'; '.join(problems)}")

    def begin(self, call: Call[Any], what: str, record: Record, timeout: int) -> MpiWork:
        """Begins an operation, and beside it the comparison of all ranks' calls."""
        agreement, rows = None, np.empty((self._size, LENGTH), np.int64)
        if call.operation not in MESSAGES:
            agreement = self._communicator.Iallgather(described(call, self._sequence), rows)
        try:
            begun = begin(self._communicator, self._rank, call)
        except load_mpi().Exception as error:
            raise _collective.CollectiveError(int(Status.INVALID), f"{what}: MPI refuses it: {error}") from error
        expected = call.count * ITEM_BYTES[call.dtype] if call.operation == Operation.RECEIVE else None
        work = MpiWork(
            what, begun, agreement, lambda: disagreement(call, self._rank, rows), timeout, expected, record,
            lambda: self._aborted, self.abort,
        )  # fmt: skip
        self._forget_finished()
        self._unfinished.append((work, rows))
        return work

    def _forget_finished(self) -> None:
        self._unfinished = [one for one in self._unfinished if one[0].pending]


# Works that were never finished, with their memory: MPI may write to it until the process ends.
_abandoned: list[tuple[MpiWork, Any]] = []
