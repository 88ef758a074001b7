"""A group whose operations MPI carries out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.calls import Call, Operation
from lowerkit.runtimes.collective.engine import Part
from lowerkit.runtimes.collective.failures import Status
from lowerkit.runtimes.collective.mpi.call_matching import LENGTH, described, disagreement
from lowerkit.runtimes.collective.mpi.dtypes import ITEM_BYTES
from lowerkit.runtimes.collective.mpi.library import load_mpi
from lowerkit.runtimes.collective.mpi.operations import begin
from lowerkit.runtimes.collective.mpi.validation import complaints
from lowerkit.runtimes.collective.mpi.work import MpiWork, Record

# As many as the native flight recorder keeps.
_RECORDS = 1024
_MESSAGES = {Operation.SEND, Operation.RECEIVE}


class MpiGroup:
    """See :class:`lowerkit.runtimes.collective.engine.EngineGroup`, and ``_collective.pyi`` for the arguments.

    MPI cannot take an operation back, nor tell who is missing: a rank that fails, by its deadline for instance, aborts
    the group on this rank alone, and memory of unfinished operations is kept until the process ends.

    Args:
        name: of the group.
        communicator: of its ranks, in their order; taken over.
        timeout: nanoseconds that an operation may take where it does not name its own.
    """

    def __init__(self, name: str, communicator: Any, timeout: int) -> None:
        self._name = name
        self._communicator = communicator
        self._rank: int = communicator.Get_rank()
        self._size: int = communicator.Get_size()
        self._timeout = timeout
        self._most_tag: int = communicator.Get_attr(load_mpi().TAG_UB)
        self._sequence = 0
        self._aborted: str | None = None
        self._records: deque[Record] = deque(maxlen=_RECORDS)
        self._unfinished: list[tuple[MpiWork, Any]] = []
        self._closed = False

    def run(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Runs an operation to its end."""
        self.start(operation, dtype, count, input, output, reduction, root, factor, tag, timeout, shape).wait()

    def start(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> MpiWork:  # fmt: skip
        """Starts an operation."""
        call = Call(
            Operation(operation), None, (), dtype, count, input, output, (), (), reduction, root, factor, tag,
            tuple(shape),
        )  # fmt: skip
        return self._start(call, timeout)

    def run_parts(
        self, operation: int, dtype: int, count: int, input: int, output: int, input_parts: Sequence[Part],
        parts: Sequence[Part], reduction: int = 0, root: int = 0, factor: float = 1.0, timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Runs an operation with a part for each rank to its end."""
        self.start_parts(
            operation, dtype, count, input, output, input_parts, parts, reduction, root, factor, timeout, shape
        ).wait()

    def start_parts(
        self, operation: int, dtype: int, count: int, input: int, output: int, input_parts: Sequence[Part],
        parts: Sequence[Part], reduction: int = 0, root: int = 0, factor: float = 1.0, timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> MpiWork:  # fmt: skip
        """Starts an operation with a part for each rank."""
        call = Call(
            Operation(operation), None, (), dtype, count, input, output, tuple(input_parts), tuple(parts), reduction,
            root, factor, 0, tuple(shape),
        )  # fmt: skip
        return self._start(call, timeout)

    def run_tensors(
        self, operation: int, output: object, input: object, reduction: int = 0, root: int = 0, timeout: int = 0
    ) -> bool:
        """Returns False: MPI takes addresses."""
        return False

    def abort(self, reason: str) -> None:
        """Fails everything that runs or will run on this rank; other ranks end by their deadlines."""
        if self._aborted is None:
            self._aborted = reason

    @property
    def aborted(self) -> str | None:
        """Why the group was aborted, or None."""
        return self._aborted

    def dead(self) -> list[int]:
        """Returns nothing: MPI ends the job when a rank dies."""
        return []

    def records(self) -> list[Record]:
        """The last operations, oldest first."""
        return list(self._records)

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

    def _start(self, call: Call[Any], timeout: int) -> MpiWork:
        if self._closed:
            raise RuntimeError("the group is closed")
        what = f"{call.operation.name.lower()} of group {self._name!r}, rank {self._rank}"
        if self._aborted is not None:
            raise _collective.CollectiveError(
                int(Status.ABORTED), f"{what}: the group was aborted earlier: {self._aborted}"
            )
        if problems := complaints(call, self._rank, self._size, self._most_tag):
            raise _collective.CollectiveError(int(Status.INVALID), f"{what}: {'; '.join(problems)}")
        limit = timeout or self._timeout
        agreement, rows = None, np.empty((self._size, LENGTH), np.int64)
        if call.operation not in _MESSAGES:
            self._sequence += 1
            what = f"{call.operation.name.lower()} #{self._sequence} of group {self._name!r}, rank {self._rank}"
            agreement = self._communicator.Iallgather(described(call, self._sequence), rows)
        try:
            begun = begin(self._communicator, self._rank, call)
        except load_mpi().Exception as error:
            raise _collective.CollectiveError(int(Status.INVALID), f"{what}: MPI refuses it: {error}") from error
        record = self._recorded(call)
        expected = call.count * ITEM_BYTES[call.dtype] if call.operation == Operation.RECEIVE else None
        work = MpiWork(
            what, begun, agreement, lambda: disagreement(call, self._rank, rows), time.monotonic_ns() + limit, expected,
            record, lambda: self._aborted, self.abort,
        )  # fmt: skip
        self._forget_finished()
        self._unfinished.append((work, rows))
        return work

    def _recorded(self, call: Call[Any]) -> Record:
        is_message = call.operation in _MESSAGES
        record: Record = {
            "sequence": 0 if is_message else self._sequence, "operation": int(call.operation), "dtype": call.dtype,
            "reduction": call.reduction, "root": call.root, "count": call.count, "tag": call.tag,
            "shape": list(call.shape), "started": time.time_ns(), "finished": 0, "waited": 0, "waited_for": -1,
            "status": int(Status.PENDING),
        }  # fmt: skip
        self._records.append(record)
        return record

    def _forget_finished(self) -> None:
        self._unfinished = [one for one in self._unfinished if one[0].pending]


# Works that were never finished, with their memory: MPI may write to it until the process ends.
_abandoned: list[tuple[MpiWork, Any]] = []
