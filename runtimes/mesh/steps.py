"""The collectives of a session's runs: the native executor calls the group, and this says why where that fails.

A run that ends early on one rank would leave the others at another place among the collectives. So it aborts the group,
which tells them why; but an index that is out of range on all ranks leaves them all at the same place, and they go on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from lowerkit.errors import LowerkitError
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied, Status, from_native
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.work import native_group
from lowerkit.runtimes.manifest import JUMP_KERNEL, ProgramSpec, Step
from lowerkit.runtimes.mesh.arena import arena_of
from lowerkit.runtimes.mesh.groups import WORLD, axis_groups
from lowerkit.runtimes.mesh.pairs import phase_of
from lowerkit.runtimes.mesh.places import place_of, rank_name
from lowerkit.runtimes.mesh.structs import MESSAGES

_ENDED = "the session cannot run again: load the artifact in a new group"


class CollectiveCalls:
    """One rank's part in a program for a mesh.

    A failure of one of its groups is one of all: it aborts them, so that ranks that share none with the rank to blame
    learn of it from those that they wait for.

    Attributes:
        ranks: the place of this process along each axis.
        address: of the function that the executor calls.
    """

    def __init__(self, program: ProgramSpec, world: Group) -> None:
        """Makes the calls of ``program`` in ``world``, which has as many ranks as its mesh, all of which do this.

        Raises:
            UsageError: LK1010, the group has another engine.
            CollectiveFault: LK8011, the group was closed; LK8007, ranks along an axis did not come.
        """
        self.ranks = place_of(program.mesh, world.rank)
        self._world, self._steps = world, program.steps
        self._who = rank_name(program.mesh, world.rank)
        self._groups = axis_groups(world, program.mesh)
        groups = self._groups.by_axis
        self._one = world in groups.values()  # the ranks along an axis are all that there are
        self._arena = arena_of(world)
        self._by_place, self._bound = bool(program.place), set[tuple[tuple[str, int], ...]]()
        messages = any(step.collective and step.collective.operation in MESSAGES for step in self._steps)
        self._alike = self._one and not program.place and not messages
        self._together = False
        self._native: dict[str, _collective.Step] = {}
        try:
            for axis, group in {**groups, **({} if self._one else {WORLD: world})}.items():
                self._native[axis] = _collective.Step(native_group(group.native, "compiled programs"))
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        self.address = _collective.step_call_address()

    def context(self, step: Step) -> int:
        """Returns what the executor hands to the function for a collective step: the ranks along its axis."""
        assert step.collective is not None, "it is a collective"
        return self._native[step.collective.axis].address

    def reserve(self, size: int, dims: Mapping[str, int]) -> int:
        """Returns where ``size`` bytes of the arena lie, which a run with these dims needs here.

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
            raise CollectiveFault(error.code, text, hint=_ENDED) from error
        return address

    @contextmanager
    def run(self) -> Generator[None]:
        """Keeps the group and its memory there while steps run.

        Raises:
            CollectiveFault: LK8011, the group was closed or aborted.
            UsageError: LK1010, in a child that was forked from the rank.
        """
        with ExitStack() as begun:
            for axis, native in self._native.items():
                try:
                    native.begin()
                    begun.callback(native.end)
                    if axis == WORLD:  # a rank that shares no axis with this one may have failed
                        native_group(self._world.native, "compiled programs").look()
                except _collective.CollectiveError as error:
                    status, message = error.args
                    failure = self._failure(status, self._groups.told(axis, message), None)
                    if not self._one:
                        self._world.abort(failure.message)
                    raise failure from error
            self._together = False
            try:
                yield
            except BaseException as error:
                if not self._together:
                    self._give_up(error)
                raise

    def meet_at_fault(self, number: int) -> None:
        """Lets the ranks go on together after step ``number`` ended the run of this one, where it did on all of them.

        Raises:
            CollectiveFault: it did not, or ranks may run other steps, or wait along other axes; the group is aborted.
        """
        if not self._alike:
            raise CollectiveFault("LK8011", f"{self._who} ended its run in step {number}")
        try:
            for native in self._native.values():
                native.settle(None)
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        if self._begins_behind(number):
            self._world.run(self._world.calls.barrier())
        elif (reason := self._world.aborted) is not None:
            raise from_native(Status.ABORTED, reason)
        self._together = True

    def raise_failure(self, step: Step, status: int) -> NoReturn:
        """Raises why ``step`` failed; ``status`` is what the executor was given, in this thread, just before.

        Raises:
            LowerkitError: as :func:`~lowerkit.runtimes.collective.failures.from_native` says.
        """
        assert step.collective is not None, "only collectives fail here"
        axis = step.collective.axis
        message = self._groups.told(axis, _collective.last_error())
        self._groups.by_axis[axis].note_failure(message)
        raise self._failure(status, message, step)

    def ended_by(self, error: LowerkitError) -> LowerkitError:
        """Returns an error that ends the run of this rank alone, with the way out that there is in a group."""
        where = f"{error.message} (at {self._who})"
        return type(error)(error.code, where, op=error.op, location=error.location, details=error.details, hint=_ENDED)

    def _failure(self, status: int, message: str, step: Step | None) -> LowerkitError:
        error = from_native(status, message)
        op = location = None
        what = "the run cannot begin"
        if step is not None:
            assert step.collective is not None, "only collectives fail here"
            op = f"{step.kind or step.collective.operation} ({step.name})" if step.name else step.collective.operation
            location = step.location or None
            what = f"{step.collective.operation} failed" + (f" in step {step.name!r}" if step.name else "")
        return type(error)(error.code, f"{what} at {self._who}: {message}", op=op, location=location, hint=_ENDED)

    def _begins_behind(self, number: int) -> bool:
        """Tells whether a rank that goes on behind step ``number`` may begin a collective."""
        return any(
            phase_of(step) in ("run", "start") or (step.kernel == JUMP_KERNEL and step.target <= number)
            for step in self._steps[number + 1 :]
        )

    def _give_up(self, error: BaseException) -> None:
        why = error.message if isinstance(error, LowerkitError) else repr(error)
        reason = f"{self._who} ended its run: {why}"
        if not isinstance(error, RankDied):
            self._world.abort(reason)
        for native in self._native.values():
            native.settle(reason)
