"""The collectives of a session's runs where the group has an engine in Python, such as that of MPI.

The executor calls back into Python at each collective step, which starts the operation of the group along the step's
axis, or waits for it. The engine may go on with the memory of an operation that failed. So it is handed memory of the
session's arena alone, which is kept then, and copies of what lies elsewhere: inputs, outputs, weights and states.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from lowerkit.errors import LowerkitError
from lowerkit.runtimes import _collective, _native
from lowerkit.runtimes.collective.calls import Operation, Part
from lowerkit.runtimes.collective.engine import EngineWork
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied, Status, from_native, usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.manifest import ITEM_SIZES, ProgramSpec, Step
from lowerkit.runtimes.mesh.dims import DTYPES, PHASES
from lowerkit.runtimes.mesh.groups import WORLD
from lowerkit.runtimes.mesh.meetings import meetings_of
from lowerkit.runtimes.mesh.steps import ENDED, CollectiveCalls, reason_of

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)
_DIMS = 7
_DONE, _FAILED = 0, 1
_ITEMS = tuple(ITEM_SIZES[name] for name in DTYPES)
_PARTS_GIVEN = {Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL}
_PARTS_TAKEN = {Operation.ALL_GATHER, Operation.ALL_TO_ALL}

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Started:
    """An operation that runs behind the steps: ``copy`` is what it writes where that is not the output itself."""

    source: int
    target: int
    work: EngineWork
    taken: int
    copy: Bytes | None
    received: int
    kept: tuple[Bytes, ...]


class EngineCalls(CollectiveCalls):
    """One rank's part in a program for a mesh, by an engine in Python. Ranks meet before each run."""

    def __init__(self, program: ProgramSpec, world: Group) -> None:
        """Makes the calls of ``program`` in ``world``, which has as many ranks as its mesh, all of which do this.

        Raises:
            CollectiveFault: LK8011, the group was closed; LK8007, ranks did not come.
        """
        super().__init__(program, world)
        self._axes = list(self._groups.by_axis.items())
        self._meetings = meetings_of(world)
        self._meetings.sessions += 1
        self._name = f"{program.name} of session {self._meetings.sessions}"
        self._runs, self._process = 0, os.getpid()
        self._memory = _native.Memory(0)
        self._started: list[_Started] = []
        self._failure: BaseException | None = None
        self._function = _CALL(self._enter)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def context(self, step: Step) -> int:
        """See :class:`CollectiveCalls`: the number of the axis."""
        assert step.collective is not None, "it is a collective"
        return [axis for axis, _ in self._axes].index(step.collective.axis)

    def reserve(self, size: int, dims: Mapping[str, int]) -> int:
        """See :class:`CollectiveCalls`: memory of this process; the ranks meet here.

        Raises:
            CollectiveFault: LK8010, another rank begins another run; LK8008, LK8009, LK8011, one does not come.
        """
        self._require_process()
        try:
            if size > self._memory.size:
                self._memory = _native.Memory(0)  # give the old one back first
                self._memory = _native.Memory(size)
        except MemoryError:
            self._world.abort(f"{self._who} has no memory of {size} bytes for a run")
            raise
        self._runs += 1
        given = ",".join(f"{name}={value}" for name, value in sorted(dims.items()))
        try:
            self._meetings.meet(f"begins run {self._runs} of {self._name}" + (f" with {given}" if given else ""))
        except LowerkitError as error:
            self._world.abort(f"{self._who} cannot begin: {error.message}")
            raise self._not_begun(error) from error
        return self._memory.address

    @contextmanager
    def run(self) -> Generator[None]:
        """See :class:`CollectiveCalls`."""
        self._require_process()
        if (reason := self._world.aborted) is not None:
            raise self.failure(Status.ABORTED, f"the group was aborted earlier: {reason}", None)
        with self._given_up_alone():
            yield

    def meet_at_fault(self, number: int) -> None:
        """See :class:`CollectiveCalls`. Several axes are refused: that a rank goes on would not be seen there."""
        self.require_alike(number)
        if not self._one:
            raise CollectiveFault("LK8011", f"{self._who} ended its run in step {number}")
        try:
            while self._started:
                started = self._started[0]
                self._finish(started.source, started.target)
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        if self.begins_behind(number):
            self._meetings.meet(f"ended run {self._runs} of {self._name} at step {number}")
        self._together = True

    def raise_failure(self, step: Step, status: int) -> NoReturn:
        """See :class:`CollectiveCalls`; an interruption that came meanwhile is raised as it is."""
        failure, self._failure = self._failure, None
        assert failure is not None, "what failed left here why"
        assert step.collective is not None, "only collectives fail here"
        if not isinstance(failure, _collective.CollectiveError):
            raise failure
        code, message = failure.args
        axis = step.collective.axis
        message = self.explained(axis, code, message)
        self._groups.by_axis[axis].note_failure(message)
        raise self.failure(code, message, step) from failure

    def _not_begun(self, error: LowerkitError) -> LowerkitError:
        text = f"the run cannot begin at {self._who}: {self._groups.told(WORLD, error.message)}"
        return type(error)(error.code, text, hint=ENDED)

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise usage("this process was forked from a rank, and has no part in its group")

    def _give_up(self, error: BaseException) -> None:
        if not isinstance(error, RankDied):
            self._world.abort(reason_of(self._who, error))
        if self._started:  # the engine may go on with them
            _abandoned.append((self._memory, tuple(self._started)))
            self._started.clear()

    def _enter(self, context: int, buffers: Any, dims: Any) -> int:
        try:
            self._step(self._axes[context][1], buffers[0] or 0, buffers[1] or 0, dims[:_DIMS])
        except BaseException as error:  # an interruption too: it is raised again behind the executor
            self._failure = error
            return _FAILED
        return _DONE

    def _step(self, group: Group, source: int, target: int, dims: list[int]) -> None:
        phase = dims[0]
        if phase != PHASES["done"]:
            self._started.append(self._start(group, source, target, dims))
        if phase != PHASES["start"]:
            self._finish(source, target)

    def _start(self, group: Group, source: int, target: int, dims: list[int]) -> _Started:
        _, number, dtype, reduction, count, ranks, root = dims
        operation, size = Operation(number), count * _ITEMS[dtype]
        given = size * (ranks if operation in _PARTS_GIVEN else operation != Operation.RECEIVE)
        taken = size * (ranks if operation in _PARTS_TAKEN else operation != Operation.SEND)
        if operation == Operation.REDUCE and root != group.rank:
            ctypes.memset(target, 0, taken)
            taken = 0
        # An engine broadcasts in one place, and reads the input of no other operation that has one buffer.
        in_place = operation in (Operation.BROADCAST, Operation.RECEIVE)
        read = write = None
        if not in_place and self._outside(source, given):
            read = np.frombuffer(ctypes.string_at(source, given), np.uint8)
        if self._outside(target, taken):
            write = np.empty(taken, np.uint8)
        into = target if write is None else write.ctypes.data
        if operation == Operation.BROADCAST and root == group.rank and source != into:
            ctypes.memmove(into, source, size)
        out_of = 0 if in_place else source if read is None else read.ctypes.data
        kept = tuple(each for each in (read, write) if each is not None)
        if operation in _PARTS_GIVEN or operation in _PARTS_TAKEN:
            given_parts = _parts(out_of, count, size, ranks) if operation in _PARTS_GIVEN else ()
            taken_parts = _parts(into, count, size, ranks) if operation in _PARTS_TAKEN else ()
            work = group.native.start_parts(
                number, dtype, count, out_of, into,
                given_parts if operation == Operation.ALL_TO_ALL else (), taken_parts or given_parts, reduction, root,
            )  # fmt: skip
        else:
            work = group.native.start(number, dtype, count, out_of, into, reduction, root)
        received = size if operation == Operation.RECEIVE else -1
        return _Started(source, target, work, taken, write, received, kept)

    def _finish(self, source: int, target: int) -> None:
        # Of two with the same buffers it does not matter which one a step waits for: neither has any other.
        started = next(each for each in self._started if (each.source, each.target) == (source, target))
        started.work.wait()
        sender, came = started.work.received
        self._started.remove(started)
        if started.received >= 0 and came != started.received:
            message = f"receive: rank {sender} sends {came} bytes, this rank expects {started.received}"
            raise _collective.CollectiveError(int(Status.DESYNC), message)
        if started.copy is not None:
            ctypes.memmove(target, started.copy.ctypes.data, started.taken)

    def _outside(self, address: int, size: int) -> bool:
        """Tells whether memory is not the arena's."""
        first = self._memory.address
        return size > 0 and not (first <= address and address + size <= first + self._memory.size)


def _parts(address: int, count: int, size: int, ranks: int) -> tuple[Part, ...]:
    """Returns parts that lie one behind the other."""
    return tuple((address + rank * size, count) for rank in range(ranks))


# Operations that never ended, with their memory: the engine may write to it until the process ends.
_abandoned: list[tuple[_native.Memory, tuple[_Started, ...]]] = []
