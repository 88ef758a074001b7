"""The collectives of a session's runs: the executor calls the group's engine, and this says why where that fails.

A run that ends early on one rank would leave the others at another place among the collectives. So it aborts the group,
which tells them why; but an index that is out of range on all ranks leaves them all at the same place, and they go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import NoReturn

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import CollectiveFault, Status, from_native
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.manifest import JUMP_KERNEL, ProgramSpec, Step
from lowerkit.runtimes.mesh.groups import axis_groups
from lowerkit.runtimes.mesh.pairs import phase_of
from lowerkit.runtimes.mesh.places import place_of, rank_name, ranks_along
from lowerkit.runtimes.mesh.structs import MESSAGES
from lowerkit.runtimes.mesh.waiting import follow, waited_for

ENDED = "the session cannot run again: load the artifact in a new group"

_ENDED_EARLY = "; no step of a program is a barrier: a rank calls it whose run has ended at an index out of range"


class CollectiveCalls(ABC):
    """One rank's part in a program for a mesh.

    A failure of one of its groups is one of all: it aborts them, so that ranks that share none with the rank to blame
    learn of it from those that they wait for.

    Attributes:
        ranks: the place of this process along each axis.
        address: of the function that the executor calls.
    """

    address: int

    def __init__(self, program: ProgramSpec, world: Group) -> None:
        """Makes the groups of ``program`` in ``world``, which has as many ranks as its mesh, all of which do this.

        Raises:
            CollectiveFault: LK8011, the group was closed; LK8007, ranks along an axis did not come.
        """
        self.ranks = place_of(program.mesh, world.rank)
        self._world, self._steps = world, program.steps
        self._who = rank_name(program.mesh, world.rank)
        self._groups = axis_groups(world, program.mesh)
        self._one = world in self._groups.by_axis.values()  # the ranks along an axis are all that there are
        messages = any(step.collective and step.collective.operation in MESSAGES for step in self._steps)
        self._alike = not program.place and not messages
        self._together = False
        self._jumps = any(step.kernel == JUMP_KERNEL for step in self._steps)

    @abstractmethod
    def context(self, step: Step) -> int:
        """Returns what the executor hands to the function for a collective step."""

    @abstractmethod
    def reserve(self, size: int, dims: Mapping[str, int]) -> int:
        """Returns where ``size`` bytes of the arena lie, which a run with these dims needs here. All ranks call it.

        Raises:
            LowerkitError: out of memory, or the group failed.
        """

    @abstractmethod
    def run(self) -> AbstractContextManager[None]:
        """Keeps the group and its memory there while steps run.

        Raises:
            CollectiveFault: LK8011, the group was closed or aborted.
            UsageError: LK1010, in a child that was forked from the rank.
        """

    @abstractmethod
    def meet_at_fault(self, number: int) -> None:
        """Lets the ranks go on together after step ``number`` ended the run of this one, where it did on all of them.

        Raises:
            CollectiveFault: it did not, or ranks may run other steps, or wait along other axes; the group is aborted.
        """

    @abstractmethod
    def raise_failure(self, step: Step, status: int) -> NoReturn:
        """Raises why ``step`` failed; ``status`` is what the executor was given.

        Raises:
            LowerkitError: as :func:`~lowerkit.runtimes.collective.failures.from_native` says.
        """
        raise NotImplementedError

    @abstractmethod
    def _give_up(self, error: BaseException) -> None:
        """Ends what has begun, and tells the others of the group why."""

    @contextmanager
    def _given_up_alone(self) -> Generator[None]:
        """Gives up at an error of this rank, unless :meth:`meet_at_fault` found that all ranks have it."""
        self._together = False
        try:
            yield
        except BaseException as error:
            if not self._together:
                self._give_up(error)
            raise

    def ended_by(self, error: LowerkitError) -> LowerkitError:
        """Returns an error that ends the run of this rank alone, with the way out that there is in a group."""
        where = f"{error.message} (at {self._who})"
        return type(error)(error.code, where, op=error.op, location=error.location, details=error.details, hint=ENDED)

    def failure(self, status: int, message: str, step: Step | None) -> LowerkitError:
        """Returns the error of a step, or of a run that cannot begin: rank, step, op and line."""
        error = from_native(status, message)
        op = location = None
        what = "the run cannot begin"
        if step is not None:
            assert step.collective is not None, "only collectives fail here"
            op = f"{step.kind or step.collective.operation} ({step.name})" if step.name else step.collective.operation
            location = step.location or None
            what = f"{step.collective.operation} failed" + (f" in step {step.name!r}" if step.name else "")
        return type(error)(error.code, f"{what} at {self._who}: {message}", op=op, location=location, hint=ENDED)

    def explained(self, axis: str, status: int, message: str) -> str:
        """Returns why an operation along ``axis`` failed, with the ranks that the one it waited for waits for itself.

        Where a rank that shares no axis with this one has stopped, its neighbours wait for it, and this one for them.
        """
        other = waited_for(message) if status == Status.TIMEOUT and not self._one else None
        message = self._groups.told(axis, message)
        if status == Status.DESYNC and "barrier()" in message:
            return message + _ENDED_EARLY
        members = ranks_along(self._groups.mesh, axis, self._world.rank)
        if other is None or other >= len(members) or members[other] == self._world.rank:
            return message
        world, mesh = self._world, self._groups.mesh
        chain = follow(world.store, f"{world.name}/{world.identity}", world.rank, members[other], world.size)
        pairs = [f"; {rank_name(mesh, one)} waits for {rank_name(mesh, two)}" for one, two in pairwise(chain)]
        return message + "".join(pairs)

    def require_alike(self, number: int) -> None:
        """Raises CollectiveFault (LK8011) where other ranks may be at other steps than ``number``.

        They may be in the stages of a pipeline, which run other programs. Along several axes a jump is one too many:
        behind it nobody knows along which axis another rank begins the next collective.
        """
        if not self._alike or (self._jumps and not self._one):
            raise CollectiveFault("LK8011", f"{self._who} ended its run in step {number}")

    def begins_behind(self, number: int) -> bool:
        """Tells whether a rank that goes on behind step ``number`` may begin a collective."""
        return any(
            _begins(step) or (step.kernel == JUMP_KERNEL and step.target <= number)
            for step in self._steps[number + 1 :]
        )

    def axes_behind(self, number: int) -> list[str]:
        """Returns the axes along which a rank that goes on behind step ``number`` begins collectives, the next first.

        There are no jumps among several axes: see :meth:`require_alike`.
        """
        begun = [step.collective.axis for step in self._steps[number + 1 :] if step.collective and _begins(step)]
        return list(dict.fromkeys(begun))


def _begins(step: Step) -> bool:
    return phase_of(step) in ("run", "start")


def reason_of(who: str, error: BaseException) -> str:
    """Returns what the others are told of a run that ended early."""
    return f"{who} ended its run: {error.message if isinstance(error, LowerkitError) else repr(error)}"
