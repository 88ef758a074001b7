"""What a group and all groups that are made of it share, and how their ranks are connected."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.engine import Connected, EngineName, refuse_unused
from lowerkit.runtimes.collective.failures import from_native, usage
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS
from lowerkit.runtimes.collective.rendezvous.job_token import given_token
from lowerkit.runtimes.collective.rendezvous.rendezvous import meet
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.collective.tuning.table import Tuning, TuningTable

logger = logging.getLogger("lowerkit.collective")


@dataclass(frozen=True)
class GroupSettings:
    """What a group and those that are made of it share.

    Attributes:
        reach: how ranks reach each other.
        timeout: seconds that an operation may take.
        tuning: measured values, or None.
        record_folder: where flight records of failures go, or None.
        engine: who carries operations out.
    """

    reach: RendezvousOptions
    timeout: float
    tuning: TuningTable | None
    record_folder: Path | None
    engine: EngineName | Literal["gloo"] = field(default="lowerkit", kw_only=True)

    @staticmethod
    def given(
        options: RendezvousOptions | None,
        timeout: float,
        tuning: TuningTable | None,
        record_folder: str | os.PathLike[str] | None,
        engine: EngineName,
    ) -> GroupSettings:
        """Returns the settings that :meth:`Group.join` was given; without a token the environment is asked.

        Raises:
            UsageError: LK1010, they do not fit each other, or the folder is none.
        """
        options = options or RendezvousOptions()
        if engine == "mpi":
            refuse_unused(
                engine, token=options.token is not None, interface=options.interface is not None,
                shared_memory=not options.shared_memory, tuning=tuning is not None,
            )  # fmt: skip
        elif engine == "lowerkit":
            options = replace(options, token=given_token(options.token))
        else:
            raise usage(f"there is no engine {engine!r} for arrays; there are lowerkit and mpi")
        folder = None if record_folder is None else Path(record_folder)
        if folder is not None and not folder.is_dir():
            raise usage(f"record_folder: {folder} is no folder")
        return GroupSettings(options, timeout, tuning, folder, engine=engine)

    def tuned(self, local_count: int) -> Tuning:
        """Returns the values for a number of local ranks.

        Raises:
            UsageError: LK1010, a value is out of its range.
        """
        found = self.tuning.for_ranks(local_count) if self.tuning is not None else Tuning()
        found.check()
        return found

    def connect(self, store: Store, name: str, rank: int, size: int) -> Connected:
        """Connects the ranks of a group.

        Raises:
            LowerkitError: see :func:`lowerkit.runtimes.collective.rendezvous.rendezvous.meet`, and ``meet_in_mpi``.
        """
        if self.engine == "mpi":
            from lowerkit.runtimes.collective.mpi.group import MpiGroup
            from lowerkit.runtimes.collective.mpi.rendezvous import meet_in_mpi

            communicator, local_ranks, identity = meet_in_mpi(store, name, rank, size, self.reach.timeout)
            engine = MpiGroup(name, communicator, int(self.timeout * NANOSECONDS))
            return Connected(engine, local_ranks, None, identity)
        return self._connect_natively(store, name, rank, size)

    def _connect_natively(self, store: Store, name: str, rank: int, size: int) -> Connected:
        def memory_bytes(local_count: int) -> int:
            return _collective.segment_bytes(local_count, self.tuned(local_count).tile_bytes)

        connections = meet(store, name, rank, size, self.reach, memory_bytes)
        local_ranks = tuple(connections.local_ranks)
        tuning = self.tuned(len(local_ranks))
        if self.tuning is not None:
            logger.info("group %r: tuning of %s for %d ranks: %s", name, self.tuning.source, size, tuning)
        try:
            native = _collective.Group(
                name,
                rank,
                size,
                local_ranks,
                connections.memory,
                connections.descriptors(size),
                connections.process_descriptors(size),
                int(self.timeout * NANOSECONDS),
                tuning=tuning.numbers,
            )
        except _collective.CollectiveError as error:
            connections.close()
            raise from_native(*error.args) from error
        except BaseException:
            connections.close()
            raise
        connections.detach()
        return Connected(native, local_ranks, connections.token, connections.identity)

    def among(self, members: Sequence[int]) -> GroupSettings:
        """Returns the settings of a group of these ranks."""
        return self

    def seconds(self) -> float:
        """Returns the time by which ranks wait for each other."""
        return time.monotonic()

    def wall_nanoseconds(self) -> int:
        """Returns the time that records name."""
        return time.time_ns()
