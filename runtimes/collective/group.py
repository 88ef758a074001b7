"""A group of ranks, for numpy arrays.

::

    group = Group.join(DirectoryStore(folder), "world", rank, size)
    total = group.run(group.calls.all_reduce(array))             # waits
    work = group.start(group.calls.all_reduce(array, "max"))     # goes on behind the caller
    largest = work.wait()

Every rank makes the same calls in the same order. A failure that may have left ranks at different places aborts the
group; :meth:`Group.shrink` makes a new one of the ranks that are left.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.arena import Arena, share_memory
from lowerkit.runtimes.collective.calls import Call, Calls
from lowerkit.runtimes.collective.engine import EngineName
from lowerkit.runtimes.collective.failures import from_native, usage
from lowerkit.runtimes.collective.group_settings import GroupSettings
from lowerkit.runtimes.collective.keep_alive import Unfinished
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.collective.shrink import agree_on_survivors
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record, keep_flight_record
from lowerkit.runtimes.collective.tuning.table import TuningTable
from lowerkit.runtimes.collective.work import Plan, Work, native_group

Result = TypeVar("Result")


class Group:
    """Ranks that communicate; make one with :meth:`join`. Calls of one group come from one thread at a time.

    Attributes:
        name: the group's name, unique in its store.
        rank: this rank.
        size: number of ranks.
        store: where the ranks found each other.
        local_ranks: ranks that share memory with this one, itself included, ascending.
        calls: makes the calls that :meth:`run`, :meth:`start` and :meth:`Plan.add` take.
        identity: the same on all ranks and of no other group: the store may hold what one of this name left.
        native: the engine that carries operations out.
        unfinished: keeps the memory of started operations.
        companions: what others made of this group and for it alone, by their own keys; it lives as long.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int, settings: GroupSettings) -> None:
        connected = settings.connect(store, name, rank, size)
        self.name = name
        self.rank = rank
        self.size = size
        self.local_ranks = connected.local_ranks
        self.calls = Calls(rank, size)
        self.store = store
        self.identity = connected.identity
        self.native = connected.engine
        self.unfinished = Unfinished(survives_failure=settings.engine != "lowerkit")
        reach = settings.reach
        self._settings = replace(settings, reach=replace(reach, token=connected.token or reach.token))
        self._children = self._workspaces = 0
        self._arena: Arena | None = None
        self._recorded = self._closed = False
        self._failure = ""
        self._parent: Group | None = None
        self._parts: list[tuple[Group, Sequence[int]]] = []  # with the ranks here of each one's members
        self.companions: dict[Hashable, Any] = {}

    @staticmethod
    def join(
        store: Store,
        name: str,
        rank: int,
        size: int,
        options: RendezvousOptions | None = None,
        *,
        timeout: float = 300.0,
        tuning: TuningTable | None = None,
        record_folder: str | os.PathLike[str] | None = None,
        engine: EngineName = "lowerkit",
    ) -> Group:
        """Meets the other ranks; returns when all of them are connected.

        Args:
            store: reached by all ranks.
            name: the group's name; unique in the store among groups that exist at one time.
            rank: this rank, from 0.
            size: number of ranks.
            options: how ranks reach each other; without a token in them the environment is asked (``job_token.py``).
            timeout: seconds that an operation may take, where it does not name its own.
            tuning: measured values, the same on all ranks of a host; None: the built-in ones.
            record_folder: an existing folder. When the group fails, each rank writes its flight record into it
                (``GROUP.rankN.json``, to be merged by ``lowerkit comm trace``) and logs that it did. Groups made of
                this one do the same.
            engine: who carries operations out: ``lowerkit``, or ``mpi`` for ranks that ``mpirun`` started.

        Raises:
            LowerkitError: see :meth:`GroupSettings.connect`.
        """
        return Group(store, name, rank, size, GroupSettings.given(options, timeout, tuning, record_folder, engine))

    def run(self, call: Call[Result], timeout: float = 0.0) -> Result:
        """Runs an operation to its end, after this group's earlier ones; returns its result.

        Args:
            call: made by :attr:`calls`.
            timeout: seconds; 0: the group's.

        Raises:
            LowerkitError: it failed; the message names the operation, its sequence number and the rank to blame.
        """
        limit = int(timeout * NANOSECONDS)
        try:
            if call.parts or call.input_parts:
                self.native.run_parts(
                    call.operation, call.dtype, call.count, call.input, call.output, call.input_parts, call.parts,
                    call.reduction, call.root, call.factor, limit, call.shape,
                )  # fmt: skip
            else:
                self.native.run(
                    call.operation, call.dtype, call.count, call.input, call.output, call.reduction, call.root,
                    call.factor, call.tag, limit, call.shape,
                )  # fmt: skip
        except _collective.CollectiveError as error:
            self.note_failure(error.args[1], call)
            raise from_native(*error.args) from error
        return call.result

    def start(self, call: Call[Result], timeout: float = 0.0) -> Work[Result]:
        """Starts an operation behind the caller; arguments and errors are those of :meth:`run`."""
        limit = int(timeout * NANOSECONDS)
        try:
            if call.parts or call.input_parts:
                work = self.native.start_parts(
                    call.operation, call.dtype, call.count, call.input, call.output, call.input_parts, call.parts,
                    call.reduction, call.root, call.factor, limit, call.shape,
                )  # fmt: skip
            else:
                work = self.native.start(
                    call.operation, call.dtype, call.count, call.input, call.output, call.reduction, call.root,
                    call.factor, call.tag, limit, call.shape,
                )  # fmt: skip
        except _collective.CollectiveError as error:
            self.note_failure(error.args[1], call)
            raise from_native(*error.args) from error
        self.unfinished.keep(work, call)
        return Work(call, work, self.note_failure, self.unfinished)

    def run_all(self, calls: Sequence[Call[Result]], timeout: float = 0.0) -> list[Result]:
        """Runs several operations, in their order, by one call of the native side: the coalesced form of each.

        To run the same ones again and again, record them in a :class:`Plan`.

        Args:
            calls: made by :attr:`calls`.
            timeout: seconds for each of them; 0: the group's.

        Raises:
            LowerkitError: one failed; those behind it did not run.
        """
        plan = Plan()
        results = [plan.add(self, call, timeout) for call in calls]
        plan.run()
        return results

    def split(self, color: int, key: int = 0) -> Group | None:
        """Makes one group of the ranks of each colour, ordered by key and then by rank. All ranks call it.

        Args:
            color: at least 0, or -1: this rank gets no group (None).
            key: at least -2**31, below 2**31.
        """
        if not -1 <= color < 1 << 31 or not -(1 << 31) <= key < 1 << 31:
            raise usage(f"color {color} and key {key}: expected -1 to 2**31 - 1 and 32 bits")
        rows = self.run(self.calls.all_gather(np.array([color, key], np.int64)))
        self._children += 1
        alike = [rank for rank in range(self.size) if rows[rank][0] == color]
        members = sorted(alike, key=lambda rank: (int(rows[rank][1]), rank))
        if color < 0:
            return None
        return self._subgroup(f"{self.name}/{self._children}.{color}", members, self)

    def subgroup(self, name: str, members: Sequence[int]) -> Group:
        """Makes a group of ranks that know who they are; they alone call it. It is aborted and closed with this one.

        Args:
            name: unique in the store, as that of :meth:`join`.
            members: their ranks here, this one among them; the new group numbers them in this order.
        """
        part = self._subgroup(name, members, self)
        self._parts.append((part, tuple(members)))
        return part

    def shrink(self, timeout: float = 10.0) -> Group:
        """Makes a new group of the ranks that are left after a failure. Every rank that is left calls it.

        The ranks agree through the store: who shows up within ``timeout`` seconds is in (at once if all but those known
        to be dead are there). Ranks keep their order. This group is aborted; :meth:`close` it.

        Raises:
            CollectiveFault: LK8007, the others went on without this rank, or the new group could not be formed.
        """
        members = self.survivors(timeout)
        name = f"{self.name}/shrunk.{self._children}.{'.'.join(map(str, members))}"
        return self._subgroup(name[:200], members)

    def survivors(self, timeout: float = 10.0) -> list[int]:
        """Aborts the group and returns the ranks that are left, ascending: what :meth:`shrink` makes its group of."""
        # Ranks that have not failed yet learn from this why they do.
        self.abort(f"rank {self.rank} shrinks the group" + (f" after: {self._failure}" if self._failure else ""))
        self._children += 1
        key = f"{self.name}/{self.identity}/left.{self._children}"
        return agree_on_survivors(self.store, key, self.rank, self.size, self.dead, timeout, self._settings.seconds)

    @property
    def dead(self) -> set[int]:
        """The ranks that this one knows to be dead, those that died in its subgroups included."""
        return {*self.native.dead(), *(members[rank] for part, members in self._parts for rank in part.dead)}

    def arena(self, size: int) -> Arena:
        """Makes the group's arena: memory that local ranks reach, so that operations on it need no copies.

        All ranks call it, at most once.

        Args:
            size: bytes of each rank.

        Raises:
            UsageError: LK1010, there is one, or the engine has none.
            ResourceError: LK7004, out of memory.
        """
        if self._arena is not None or self._workspaces:
            raise usage(f"group {self.name!r} has an arena already, or sessions of compiled programs that have one")
        native, options = native_group(self.native, "arenas"), self._settings.reach
        self._arena = Arena.make(native, self.store, self.name, self.rank, self.local_ranks, options, size)
        return self._arena

    def workspace(self, size: int) -> int:
        """Maps memory that local ranks reach, in an earlier one's place; returns its address. See ``mesh/arena.py``."""
        if self._arena is not None:
            raise usage(f"group {self.name!r} has an arena: compiled programs need a group without one, see split()")
        self._workspaces += 1
        place = f"{self.name}/workspace.{self._workspaces}.{self.local_ranks[0]}"
        native, own = native_group(self.native, "arenas"), self.local_ranks.index(self.rank)
        return share_memory(native, self.store, place, own, len(self.local_ranks), self._settings.reach, size)

    def abort(self, reason: str) -> None:
        """Fails all that runs or will run in the group and its subgroups, on all ranks. Any thread may call it."""
        self.native.abort(reason)
        for part, _ in list(self._parts):
            part.abort(reason)

    @property
    def aborted(self) -> str | None:
        """Why the group was aborted, or None."""
        return self.native.aborted

    def close(self) -> None:
        """Ends this rank's part in the group; unfinished work fails. A second call does nothing.

        Raises:
            UsageError: LK1010, arrays of the arena are still in use.
        """
        if self._closed:
            return
        if self._arena is not None:
            self._arena.close()
        for part, _ in self._parts:
            part.close()
        self.keep_record()
        self._closed = True
        self.native.close()
        self.unfinished.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note_failure(self, message: str, memory: object = None) -> None:
        """Keeps the first failure for those that ask why this rank shrinks the group, and the flight record.

        A failure in a subgroup is one of the group as well: ranks outside it have no other way to learn of it.

        Args:
            message: what went wrong.
            memory: what the failed operation read and wrote, where there is no handle of it.
        """
        self._failure = self._failure or message
        if self._parent is not None:
            self._parent.note_failure(message)
        self.unfinished.keep_failed(memory)
        self.keep_record()

    def flight_record(self) -> dict[str, Any]:
        """Returns this rank's last operations, as ``flight_recorder.py`` describes the document."""
        return flight_record(self.native, self.name, self.rank, self.size, self._settings.wall_nanoseconds())

    def keep_record(self) -> None:
        """Writes the flight record into ``record_folder``, once, if there is one and the group was aborted."""
        folder = self._settings.record_folder
        if folder is None or self._recorded or self._closed or self.native.aborted is None:
            return
        self._recorded = True
        keep_flight_record(folder, self.flight_record())

    def _subgroup(self, name: str, members: Sequence[int], parent: Group | None = None) -> Group:
        group = Group(self.store, name, members.index(self.rank), len(members), self._settings.among(members))
        group._parent = parent
        return group
