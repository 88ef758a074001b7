"""What a rendezvous takes and gives: how ranks reach each other, and their connections."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field


@dataclass
class Connections:
    """What a rendezvous gives: descriptors that are the caller's from then on.

    Attributes:
        token: the job token, for groups made of this one's ranks.
        identity: the same on all ranks, and of no other meeting, under the same name or another.
        local_ranks: ascending, with the rank itself: those that share memory.
        memory: descriptor of the shared memory, -1 if the rank is alone on its host.
        streams: a connected stream socket for each other rank, by rank.
        processes: a pidfd of the process of each rank that a Unix stream leads to, by rank, where the kernel tells it.
    """

    token: bytes
    identity: str
    local_ranks: list[int]
    memory: int = -1
    streams: dict[int, socket.socket] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        """Closes everything that was not handed on."""
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        for process in self.processes.values():
            os.close(process)
        self.processes.clear()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1

    def descriptors(self, size: int) -> list[int]:
        """Returns the streams' descriptors by rank, -1 for the rank itself."""
        return [self.streams[rank].fileno() if rank in self.streams else -1 for rank in range(size)]

    def process_descriptors(self, size: int) -> list[int]:
        """Returns the processes' descriptors by rank, -1 where there is none."""
        return [self.processes.get(rank, -1) for rank in range(size)]

    def detach(self) -> None:
        """Forgets all descriptors: another has taken them over."""
        for stream in self.streams.values():
            stream.detach()
        self.streams.clear()
        self.processes.clear()
        self.memory = -1


@dataclass(frozen=True)
class RendezvousOptions:
    """How ranks reach each other.

    Attributes:
        token: the job token, or None: the one that rank 0 publishes in the store (see ``job_token.py``).
        interface: name or address of the network interface to listen on; None: loopback, for ranks of one host.
        shared_memory: False: ranks of one host talk by TCP as well, as if they were apart.
        timeout: seconds until all ranks must be connected.
    """

    token: bytes | None = None
    interface: str | None = None
    shared_memory: bool = True
    timeout: float = 300.0
