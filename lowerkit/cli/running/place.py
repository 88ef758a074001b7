"""Which rank this process is, and where it meets the others: as `lowerkit run --nproc` says, or as a launcher does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
    from lowerkit.runtimes.collective.rendezvous.store import Store

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LocalPlace:
    """The place of a rank that ``lowerkit run --nproc`` started.

    Attributes:
        folder: of all ranks; private.
        rank: which one this is.
        size: how many there are.
    """

    folder: Path
    rank: int
    size: int

    def options(self) -> list[str]:
        """Returns the options by which a command line says its place; :meth:`of` reads them."""
        return ["--rank-place", f"{self.rank}:{self.size}:{self.folder}"]

    @staticmethod
    def of(text: str) -> LocalPlace:
        """Reads what :meth:`options` wrote.

        Raises:
            UsageError: LK1009, somebody else wrote it.
        """
        rank, _, rest = text.partition(":")
        size, _, folder = rest.partition(":")
        if not (rank.isdecimal() and size.isdecimal() and folder):
            raise UsageError("LK1009", f"--rank-place is {text!r}: --nproc writes it, nobody else")
        return LocalPlace(Path(folder), int(rank), int(size))

    @property
    def report(self) -> Path:
        """Where this rank writes its diagnostic."""
        return self.folder / f"rank{self.rank}.json"

    def store(self, seconds: float) -> Store:
        """Returns the store in which the ranks meet."""
        from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore

        return DirectoryStore(self.folder / "store")

    def reach(self) -> RendezvousOptions:
        """Returns how the ranks reach each other: all are on this host."""
        from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions

        return RendezvousOptions()


@dataclass(frozen=True)
class LauncherPlace:
    """The place of a rank that a launcher started, such as ``torchrun``; the launcher's store is torch's.

    Attributes:
        rank: which one this is.
        size: how many there are.
        address: where rank 0, or the launcher, keeps the store: ``HOST:PORT``.
    """

    rank: int
    size: int
    address: str

    @staticmethod
    def of_environment() -> LauncherPlace | None:
        """Returns the place that a launcher's variables name, or None: no launcher started this process.

        Raises:
            UsageError: LK1009, some of the variables are missing or no numbers.
        """
        values = {name: os.environ.get(name, "") for name in _LAUNCHER_VARIABLES}
        if not (values["RANK"] or values["WORLD_SIZE"]):
            return None
        missing = [name for name, value in values.items() if not value]
        if missing:
            given = ", ".join(name for name in values if name not in missing)
            raise UsageError(
                "LK1009",
                f"a launcher set {given} and not {', '.join(missing)}",
                hint="set all of them, as torchrun does, or start the ranks with --nproc",
            )
        rank, size, host, port = values.values()
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise UsageError("LK1009", f"a launcher set RANK={rank} and WORLD_SIZE={size}, expected 0 <= RANK < WORLD_SIZE")
        return LauncherPlace(int(rank), int(size), f"{host}:{port}")

    def store(self, seconds: float) -> Store:
        """Returns the launcher's store, waiting for it.

        Raises:
            CollectiveFault: LK8007, it does not answer.
        """
        from datetime import timedelta

        import torch.distributed as dist

        from lowerkit.distributed.torch_store import TorchStore
        from lowerkit.runtimes.collective.failures import not_formed

        try:
            store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
        except (RuntimeError, ValueError) as error:
            raise not_formed(
                f"rank {self.rank}: the launcher's store at {self.address} cannot be reached: {error}",
                hint="MASTER_ADDR and MASTER_PORT name it; without torchrun rank 0 keeps it",
            ) from error
        return TorchStore(store)

    def reach(self) -> RendezvousOptions:
        """Returns how the ranks reach each other: other hosts over the interface that faces the store."""
        from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
        from lowerkit.runtimes.collective.rendezvous.host import address_towards

        host, _, port = self.address.rpartition(":")
        return RendezvousOptions(interface=address_towards(host, int(port)))
