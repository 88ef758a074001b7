"""What a group and all groups that are made of it share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.meeting import Meeting, RendezvousOptions
from lowerkit.runtimes.collective.rendezvous import meet
from lowerkit.runtimes.collective.store import Store
from lowerkit.runtimes.collective.tuning import Tuning, TuningTable


@dataclass(frozen=True)
class GroupSettings:
    """What a group and those that are made of it share.

    Attributes:
        reach: how ranks reach each other.
        timeout: seconds that an operation may take.
        tuning: measured values, or None.
        record_folder: where flight records of failures go, or None.
    """

    reach: RendezvousOptions
    timeout: float
    tuning: TuningTable | None
    record_folder: Path | None

    def tuned(self, local_count: int) -> Tuning:
        """Returns the values for a number of local ranks."""
        return self.tuning.for_ranks(local_count) if self.tuning is not None else Tuning()

    def meet(self, store: Store, name: str, rank: int, size: int) -> Meeting:
        """Connects the ranks of a group; see :func:`lowerkit.runtimes.collective.rendezvous.meet`."""

        def memory_bytes(local_count: int) -> int:
            return _collective.segment_bytes(local_count, self.tuned(local_count).tile_bytes)

        return meet(store, name, rank, size, self.reach, memory_bytes)
