"""Groups whose ranks are threads of one process, on a network and a clock of their own: for tests and simulation.

::

    with simulate(4, latency=50e-6, bandwidth=1e9, loss=0.01, death={2: 100}, seed=7) as simulation:
        outcomes = simulation.run(lambda group: group.run(group.calls.all_reduce(np.ones(8))))

Time stands still while any rank computes, and goes on to the next event when all of them wait. So a timeout of minutes
costs nothing, and the same program with the same seed has the same outcome at the same moments, whatever the machine
does: errors, flight records, the order in which messages come from any source. A rank may use the group's calls, its
store, and numpy; a lock between ranks is unknown to the clock.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.engine import Connected
from lowerkit.runtimes.collective.failures import from_native, usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.group_settings import GroupSettings
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.collective.simulation.simulated_store import SharedValues, SimulatedStore

logger = logging.getLogger("lowerkit.collective")

Result = TypeVar("Result")
_MOST_RANKS = 1024


@contextmanager
def simulate(
    ranks: int,
    *,
    latency: float = 0.0,
    bandwidth: float = 0.0,
    jitter: float = 0.0,
    reorder: float = 0.0,
    hold_up: float = 200e-6,
    loss: float = 0.0,
    death: Mapping[int, int] | None = None,
    island: Sequence[int] = (),
    cut_at: int = 0,
    seed: int = 1,
    held_back: bool = False,
    timeout: float = 300.0,
    patience: float = 10.0,
    record_folder: str | os.PathLike[str] | None = None,
) -> Generator[Simulation]:
    """Makes a group whose ranks are threads; closes it at the end.

    What happens to a message between two ranks depends on the seed, the two, and its number on that way.

    Args:
        ranks: how many, 1 to 1024.
        latency: seconds that every message takes.
        bandwidth: bytes a second of each way from one rank to another, whichever group sends; a message leaves when
            those before it have left, and has a header of 64 bytes. 0: no limit.
        jitter: seconds on top of it: uniform from 0 up to this.
        reorder: probability that a message is held up for ``hold_up`` seconds more. Messages of other operations and
            tags overtake it then; those of its own wait for it.
        hold_up: see ``reorder``.
        loss: probability that a message never arrives. A later one of the same operation or tag is refused then.
        death: rank -> how many messages it sends before it dies; operations are made of several.
        island: ranks that are cut off from the others...
        cut_at: ... after so many messages of each way between them.
        seed: two runs with the same one do the same.
        held_back: until a rank calls :meth:`Simulation.begin` what it sends arrives at once, and is not counted.
        timeout: seconds (of the simulation) that an operation may take.
        patience: seconds of real time. A rank that computes for longer between two calls is no longer waited for; that
            is logged, and such a run may differ from another.
        record_folder: see :meth:`Group.join`.

    Raises:
        UsageError: LK1010, a number is out of its range.
    """
    if not 1 <= ranks <= _MOST_RANKS:
        raise usage(f"{ranks} ranks, expected 1 to {_MOST_RANKS}")
    unknown = [rank for rank in (*island, *(death or {})) if not 0 <= rank < ranks]
    if unknown:
        raise usage(f"there are no ranks {unknown}: there are 0 to {ranks - 1}")
    deaths = dict.fromkeys(range(ranks), -1) | dict(death or {})
    cut = [int(rank in island) for rank in range(ranks)]
    times = [int(seconds * NANOSECONDS) for seconds in (latency, jitter, hold_up, patience)]
    try:
        native = _collective.Simulation(
            ranks, seed % (1 << 64), times[0], times[1], reorder, times[2], loss,
            [deaths[rank] for rank in range(ranks)], cut, cut_at, times[3], bandwidth, held_back,
        )  # fmt: skip
    except _collective.CollectiveError as error:
        raise from_native(*error.args) from error
    folder = None if record_folder is None else Path(record_folder)
    simulation = Simulation(native, ranks, timeout, folder)
    try:
        yield simulation
    finally:
        simulation.close()


class Simulation:
    """Ranks that are threads; made by :func:`simulate`.

    Attributes:
        groups: one for each rank, by rank. Each is used by one thread. Groups that are split off or shrunk from them
            belong to the simulation too.
    """

    def __init__(self, native: _collective.Simulation, ranks: int, timeout: float, record_folder: Path | None) -> None:
        self._native = native
        settings = SimulatedSettings(RendezvousOptions(), timeout, None, record_folder, native, tuple(range(ranks)))
        values = SharedValues(native, ranks)
        self.groups = [Group(SimulatedStore(values, rank), "world", rank, ranks, settings) for rank in range(ranks)]

    @property
    def now(self) -> float:
        """Seconds on the ranks' clock, which begins at 1."""
        return self._native.now / NANOSECONDS

    @property
    def moment(self) -> int:
        """Nanoseconds on the ranks' clock."""
        return self._native.now

    def sleep(self, rank: int, seconds: float) -> None:
        """Lets a rank compute for so long, on the ranks' clock; called in its thread."""
        self.sleep_until(rank, self._native.now + int(seconds * NANOSECONDS))

    def sleep_until(self, rank: int, moment: int) -> None:
        """As :meth:`sleep`, until a moment in nanoseconds."""
        try:
            self._native.sleep(rank, moment)
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error

    def begin(self, rank: int) -> None:
        """Lets the rules of the network hold for what a rank sends from now on, where they were held back."""
        self._native.begin(rank)

    def sent(self, rank: int) -> tuple[int, int]:
        """Returns how many messages a rank has sent since the rules hold, and their bytes, headers included."""
        return self._native.sent(rank)

    def run(self, function: Callable[[Group], Result]) -> list[Result | BaseException]:
        """Runs ``function`` in a thread for each rank, as its process would; closes the groups.

        Returns:
            By rank what it returned, or what it raised; a rank that died raised RankDied.
        """
        outcomes: list[Result | BaseException] = [RuntimeError("never started")] * len(self.groups)

        def run_rank(rank: int) -> None:
            group = self.groups[rank]
            try:
                outcomes[rank] = function(group)
            except BaseException as error:
                outcomes[rank] = error
            finally:
                group.close()

        threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(len(self.groups))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    def close(self) -> None:
        """Closes the groups."""
        for group in self.groups:
            group.close()
        absent = self._native.absent()
        if absent:
            logger.warning(
                "simulation: ranks %s computed for longer than its patience: it went on without them", absent
            )


@dataclass(frozen=True)
class SimulatedSettings(GroupSettings):
    """How groups of a simulation are connected.

    Attributes:
        simulation: whose ranks they are.
        members: the group's ranks there.
    """

    simulation: _collective.Simulation
    members: tuple[int, ...]

    def connect(self, store: Store, name: str, rank: int, size: int) -> Connected:
        """Makes the rank's group; waits for nobody."""
        assert size == len(self.members)
        try:
            native = self.simulation.group(name, self.members, rank, int(self.timeout * NANOSECONDS))
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error
        return Connected(native, (rank,), None, name)

    def among(self, members: Sequence[int]) -> SimulatedSettings:
        """Returns the settings of a group of these ranks."""
        return replace(self, members=tuple(self.members[member] for member in members))

    def seconds(self) -> float:
        """Returns the ranks' time."""
        return self.simulation.now / NANOSECONDS

    def wall_nanoseconds(self) -> int:
        """Returns the ranks' time, as records of their operations have it."""
        return self.simulation.now
