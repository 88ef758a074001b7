"""An engine that is written in Python: it is handed operations as calls, and says what becomes of them.

What :class:`~lowerkit.runtimes.collective.engine.EngineGroup` asks for with many arguments becomes one ``Call`` here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.calls import Call, Operation
from lowerkit.runtimes.collective.engine import EngineWork, Part
from lowerkit.runtimes.collective.failures import Status

Record = dict[str, int | list[int]]
MESSAGES = {Operation.SEND, Operation.RECEIVE}
_RECORDS = 1024
"""As many as the native flight recorder keeps."""


class CallEngine(ABC):
    """See :class:`lowerkit.runtimes.collective.engine.EngineGroup`, and ``_collective.pyi`` for the arguments.

    Args:
        name: of the group.
        rank: this rank in it.
        timeout: nanoseconds that an operation may take where it does not name its own.
    """

    def __init__(self, name: str, rank: int, timeout: int) -> None:
        self._name = name
        self._rank = rank
        self._timeout = timeout
        self._sequence = 0
        self._aborted: str | None = None
        self._closed = False
        self._records: deque[Record] = deque(maxlen=_RECORDS)

    @abstractmethod
    def check(self, call: Call[Any], what: str) -> None:
        """Raises CollectiveError where a call cannot be made; it has no number yet."""

    @abstractmethod
    def begin(self, call: Call[Any], what: str, record: Record, timeout: int) -> EngineWork:
        """Begins an operation in a group that is neither closed nor aborted.

        Args:
            call: what to do.
            what: names it, with its number, the group and the rank, for messages.
            record: of the flight recorder, completed in the end.
            timeout: nanoseconds that it may take.

        Raises:
            CollectiveError: it cannot be.
        """

    def run(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Runs an operation to its end."""
        self.start(operation, dtype, count, input, output, reduction, root, factor, tag, timeout, shape).wait()

    def start(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> EngineWork:  # fmt: skip
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
    ) -> EngineWork:  # fmt: skip
        """Starts an operation with a part for each rank."""
        call = Call(
            Operation(operation), None, (), dtype, count, input, output, tuple(input_parts), tuple(parts), reduction,
            root, factor, 0, tuple(shape),
        )  # fmt: skip
        return self._start(call, timeout)

    def run_tensors(
        self, operation: int, output: object, input: object, reduction: int = 0, root: int = 0, timeout: int = 0
    ) -> bool:
        """Returns False: operations go by addresses."""
        return False

    def abort(self, reason: str) -> None:
        """Fails everything that runs or will run on this rank."""
        if self._aborted is None:
            self._aborted = reason

    @property
    def aborted(self) -> str | None:
        """Why nothing runs here any more, or None."""
        return self._aborted or ("it was closed" if self._closed else None)

    def dead(self) -> list[int]:
        """Returns the ranks that are known to have ended: none, where the engine does not tell."""
        return []

    def records(self) -> list[Record]:
        """The last operations, oldest first."""
        return list(self._records)

    def _start(self, call: Call[Any], timeout: int) -> EngineWork:
        name = call.operation.name.lower()
        what = f"{name} of group {self._name!r}, rank {self._rank}"
        if (reason := self.aborted) is not None:
            raise _collective.CollectiveError(int(Status.ABORTED), f"{what}: the group was aborted earlier: {reason}")
        self.check(call, what)
        if call.operation not in MESSAGES:
            self._sequence += 1
            what = f"{name} #{self._sequence} of group {self._name!r}, rank {self._rank}"
        record = _record(call, 0 if call.operation in MESSAGES else self._sequence)
        work = self.begin(call, what, record, timeout or self._timeout)
        self._records.append(record)
        return work


def _record(call: Call[Any], sequence: int) -> Record:
    return {
        "sequence": sequence, "operation": int(call.operation), "dtype": call.dtype, "reduction": call.reduction,
        "root": call.root, "count": call.count, "tag": call.tag, "shape": list(call.shape), "started": time.time_ns(),
        "finished": 0, "waited": 0, "waited_for": -1, "status": int(Status.PENDING),
    }  # fmt: skip


def ended(record: Record, status: Status) -> None:
    """Completes a record."""
    record["finished"] = time.time_ns()
    record["status"] = int(status)
