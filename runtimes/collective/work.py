"""Operations that run behind the caller, and plans: operations recorded once and run by one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.calls import Call
from lowerkit.runtimes.collective.engine import EngineGroup, EngineWork, PlanGroup
from lowerkit.runtimes.collective.failures import from_native, usage
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.keep_alive import Unfinished

Result = TypeVar("Result")


class Work(Generic[Result]):
    """An operation that :meth:`Group.start` started. Keeps its arrays alive; do not touch them before it is done.

    Whoever drops it before leaves the arrays to the group, which keeps them until the operation is over.
    """

    def __init__(
        self, call: Call[Result], native: EngineWork, on_failure: Callable[[str], None], unfinished: Unfinished
    ) -> None:
        self._call = call
        self._native = native
        self._on_failure = on_failure
        self._unfinished = unfinished

    def done(self) -> bool:
        """Tells whether it is done.

        Raises:
            LowerkitError: it failed.
        """
        try:
            done = self._native.test()
        except _collective.CollectiveError as error:
            self._on_failure(error.args[1])
            raise from_native(*error.args) from error
        if done:
            self._unfinished.forget(self._native)
        return done

    def wait(self, timeout: float = 0.0) -> Result:
        """Returns the operation's result when it is done.

        Args:
            timeout: seconds; 0: the operation's own. When it passes the operation goes on.

        Raises:
            LowerkitError: it failed, or the time passed (CollectiveFault LK8008).
        """
        try:
            self._native.wait(int(timeout * NANOSECONDS))
        except _collective.CollectiveError as error:
            self._on_failure(error.args[1])
            raise from_native(*error.args) from error
        self._unfinished.forget(self._native)
        return self._call.result

    @property
    def source(self) -> int:
        """The rank that a finished receive came from."""
        return self._native.received[0]

    @property
    def count(self) -> int:
        """Elements that a finished receive got: at most those of its array, whose rest is left as it was."""
        return self._native.received[1] // self._call.arrays[0].itemsize


class Plan:
    """Operations recorded once and run by one call, in the order in which they were added.

    A plan reads and writes the memory of the arrays that it was recorded with, every time.
    """

    def __init__(self) -> None:
        self._native = _collective.Plan()
        self._calls: list[Call[Any]] = []
        self._groups: set[PlanGroup] = set()

    def add(self, group: PlanGroup, call: Call[Result], timeout: float = 0.0) -> Result:
        """Records a call; returns its result, which is filled whenever the plan has run.

        Args:
            group: it runs in; a plan may hold calls of several groups.
            call: made by the group's ``calls``; a send or receive too.
            timeout: seconds; 0: the group's.

        Raises:
            UsageError: LK1010, the call cannot be made, or the engine knows no plans.
        """
        native = native_group(group.native, "plans")
        try:
            self._native.add(
                native, call.operation, call.dtype, call.count, call.input, call.output, call.input_parts, call.parts,
                call.reduction, call.root, call.factor, call.tag, int(timeout * NANOSECONDS), call.shape,
            )  # fmt: skip
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        self._calls.append(call)
        self._groups.add(group)
        return call.result

    def run(self) -> None:
        """Runs all of it.

        Raises:
            LowerkitError: an operation failed; those behind it did not run.
        """
        try:
            self._native.run()
        except _collective.CollectiveError as error:
            for group in self._groups:
                group.note_failure(error.args[1])
            raise from_native(*error.args) from error


def native_group(engine: EngineGroup, feature: str) -> _collective.Group:
    """Returns the native engine, for what others do not have.

    Raises:
        UsageError: LK1010, it is another engine.
    """
    if not isinstance(engine, _collective.Group):
        raise usage(f"engine='lowerkit' has {feature}; this group has another engine")
    return engine
