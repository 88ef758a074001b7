"""A rank of ``torchrun``, or of who sets ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` as it does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
    from lowerkit.runtimes.collective.rendezvous.store import Store

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LauncherPlace:
    """The place of a rank that a launcher started, such as ``torchrun``; the launcher's store is torch's.

    Attributes:
        rank: which one this is.
        size: how many there are.
        host, port: where the launcher, or rank 0, keeps the store.
    """

    rank: int
    size: int
    host: str
    port: int

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
        numbers = all(text.isdecimal() for text in (rank, size, port))
        if not (numbers and int(rank) < int(size) and int(port) < 1 << 16):
            raise UsageError(
                "LK1009",
                f"a launcher set RANK={rank}, WORLD_SIZE={size} and MASTER_PORT={port}, "
                "expected 0 <= RANK < WORLD_SIZE and a port",
            )
        return LauncherPlace(int(rank), int(size), host, int(port))

    def store(self, seconds: float) -> Store:
        """Returns the launcher's store, waiting for it.

        Raises:
            CollectiveFault: LK8007, it does not answer.
        """
        from lowerkit.distributed.torch_store import TorchStore
        from lowerkit.runtimes.collective.failures import not_formed

        try:
            return TorchStore(self._torch_store(seconds))
        except (RuntimeError, ValueError) as error:
            raise not_formed(
                f"rank {self.rank}: the store at {self.host} port {self.port} does not answer: {error}",
                hint="MASTER_ADDR and MASTER_PORT name it; torchrun keeps it, or rank 0 where there is no torchrun",
            ) from error

    def _torch_store(self, seconds: float) -> Any:
        from datetime import timedelta

        timeout = timedelta(seconds=seconds)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            from torch.distributed.rendezvous import rendezvous

            return next(rendezvous("env://", timeout=timeout))[0]
        from torch._C._distributed_c10d import TCPStore

        # torch's own would wait for all ranks, and not say which of them do not come.
        keeps = self.rank == 0
        return TCPStore(self.host, self.port, None, keeps, timeout, wait_for_workers=False, multi_tenant=True)

    def reach(self) -> RendezvousOptions:
        """Returns how the ranks reach each other: other hosts over the interface that faces the store."""
        from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
        from lowerkit.runtimes.collective.rendezvous.host import address_towards

        return RendezvousOptions(interface=address_towards(self.host, self.port))
