"""The collectives of a session's runs where the group has lowerkit's own engine: the executor calls it itself."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied, Status, from_native
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.work import native_group
from lowerkit.runtimes.manifest import ProgramSpec, Step
from lowerkit.runtimes.mesh.arena import arena_of
from lowerkit.runtimes.mesh.groups import WORLD
from lowerkit.runtimes.mesh.steps import ENDED, CollectiveCalls, reason_of


class NativeCalls(CollectiveCalls):
    """One rank's part in a program for a mesh, by the native engine. Temporary values lie in the arena of the group."""

    def __init__(self, program: ProgramSpec, world: Group) -> None:
        """Makes the calls of ``program`` in ``world``, which has as many ranks as its mesh, all of which do this.

        Raises:
            CollectiveFault: LK8011, the group was closed; LK8007, ranks along an axis did not come.
        """
        super().__init__(program, world)
        self._arena = arena_of(world)
        self._by_place, self._bound = bool(program.place), set[tuple[tuple[str, int], ...]]()
        self._native: dict[str, _collective.Step] = {}
        groups = self._groups.by_axis
        try:
            for axis, group in {**groups, **({} if self._one else {WORLD: world})}.items():
                self._native[axis] = _collective.Step(native_group(group.native, "compiled programs"))
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        self.address = _collective.step_call_address()

    def context(self, step: Step) -> int:
        """See :class:`CollectiveCalls`: the ranks along its axis."""
        assert step.collective is not None, "it is a collective"
        return self._native[step.collective.axis].address

    def reserve(self, size: int, dims: Mapping[str, int]) -> int:
        """See :class:`CollectiveCalls`.

        Raises:
            LowerkitError: as :meth:`MeshArena.reserve` and :meth:`AxisGroups.share`.
        """
        try:
            if not self._by_place:
                address = self._arena.reserve(self._world, size)
            elif (key := tuple(sorted(dims.items()))) in self._bound:
                address = self._arena.address
            else:  # another rank may need more, and know that it does
                address = self._arena.reserve_most(self._world, size)
                self._bound.add(key)
            self._groups.share(self._arena)
        except CollectiveFault as error:
            if self._one:
                raise
            message = self._groups.told(WORLD, error.message)
            self._world.abort(message)  # with the groups of the axes
            text = f"no memory for the run at {self._who}: {message}"
            raise CollectiveFault(error.code, text, hint=ENDED) from error
        return address

    @contextmanager
    def run(self) -> Generator[None]:
        """See :class:`CollectiveCalls`."""
        with ExitStack() as begun:
            for axis, native in self._native.items():
                try:
                    native.begin()
                    begun.callback(native.end)
                    if axis == WORLD:  # a rank that shares no axis with this one may have failed
                        native_group(self._world.native, "compiled programs").look()
                except _collective.CollectiveError as error:
                    status, message = error.args
                    failure = self.failure(status, self._groups.told(axis, message), None)
                    if not self._one:
                        self._world.abort(failure.message)
                    raise failure from error
            with self._given_up_alone():
                yield

    def meet_at_fault(self, number: int) -> None:
        """See :class:`CollectiveCalls`.

        Ranks meet along each axis with collectives to come, that of the next one first. A rank that goes on instead
        begins a collective there, which no rank waits for long: that it is another operation is seen at once.
        """
        self.require_alike(number)
        try:
            for native in self._native.values():
                native.settle(None)
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        if self._one and self.begins_behind(number):
            self._world.run(self._world.calls.barrier())
        for axis in [] if self._one else self.axes_behind(number):
            group = self._groups.by_axis[axis]
            group.run(group.calls.barrier())
        if (reason := self._world.aborted) is not None:
            raise from_native(Status.ABORTED, reason)
        self._together = True

    def raise_failure(self, step: Step, status: int) -> NoReturn:
        """See :class:`CollectiveCalls`; called in the thread of the run, right behind it."""
        assert step.collective is not None, "only collectives fail here"
        axis = step.collective.axis
        message = self.explained(axis, status, _collective.last_error())
        self._groups.by_axis[axis].note_failure(message)
        raise self.failure(status, message, step)

    def _give_up(self, error: BaseException) -> None:
        reason = reason_of(self._who, error)
        if not isinstance(error, RankDied):
            self._world.abort(reason)
        for native in self._native.values():
            native.settle(reason)
