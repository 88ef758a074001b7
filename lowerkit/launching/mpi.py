"""A rank that ``mpirun`` started. Ranks meet through MPI; what they do together then is the native engine's.

Vocabulary
    invitation  what rank 0 tells all others by a broadcast: where the store is, and the job token.

Steps
    1. The variables of the launcher say which rank this is and of how many; MPI must say the same.
    2. All ranks exchange the identities of their hosts, so that each knows whether they are all on one.
    3. On one host rank 0 makes a folder that only its user can enter, and the store is in it. Else rank 0 keeps a
       TCPStore of torch, and invites to it under each address of its host.
    4. Each rank tells all others under which addresses it found that store; the first one for all is taken, since
       rank 0 listens for the others there, too.
    5. The token goes by MPI as well, so that whoever reads the store cannot join.

Bytes
    Up to three calls of MPI a rank: 32 bytes to each other rank, 4 KiB from rank 0, and 8 bytes to each other rank.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lowerkit.errors import LowerkitError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
    from lowerkit.runtimes.collective.rendezvous.store import Store

VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""What launchers set: Open MPI's; those of MPICH, Intel MPI and others with its process manager."""

_INVITATION_BYTES = 4096
_SET_BYTES = 8  # a bit for each address
_POLL_SECONDS = 0.002
_TRY_SECONDS = 3.0
_NONCE_KEY = "lowerkit/mpi/nonce"


@dataclass
class MpiPlace:
    """The place of a rank that ``mpirun`` started.

    As a context it ends MPI at the end of the block. Where the block raises, MPI is left as it is: ``mpirun`` sees that
    a rank has failed, and ends the others, where the end of MPI would wait for them. Without a context mpi4py ends MPI
    at the end of the process.

    Attributes:
        rank: which one this is.
        size: how many there are.
    """

    rank: int
    size: int
    _mpi: Any = field(default=None, repr=False)
    _held: bool = field(default=False, repr=False)
    _invitation: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @staticmethod
    def of_environment() -> MpiPlace | None:
        """Returns the place that the variables of ``mpirun`` name, or None: it did not start this process.

        Raises:
            UsageError: LK1009, one of the variables is missing or no number.
        """
        for names in VARIABLES:
            rank, size = (os.environ.get(name, "") for name in names)
            if not (rank or size):
                continue
            if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
                raise UsageError(
                    "LK1009",
                    f"{names[0]} is {rank!r} and {names[1]} is {size!r}, expected a rank and how many there are",
                )
            return MpiPlace(int(rank), int(size))
        return None

    def store(self, seconds: float) -> Store:
        """Meets the other ranks in MPI; returns the store that rank 0 invites to.

        Args:
            seconds: until all ranks must be there. The start of MPI itself waits for all of them without a limit.

        Raises:
            UsageError: LK1007, there is no mpi4py or no MPI.
            CollectiveFault: LK8007, MPI has other ranks, ranks did not come, or the store cannot be reached.
        """
        from lowerkit.runtimes.collective.failures import not_formed

        self._mpi = load_mpi(finalize=not self._held)
        world = self._mpi.COMM_WORLD
        if (world.Get_rank(), world.Get_size()) != (self.rank, self.size):
            raise not_formed(
                f"mpirun started rank {self.rank} of {self.size}, and mpi4py finds rank {world.Get_rank()} of "
                f"{world.Get_size()}",
                hint="mpi4py uses another MPI library than that of mpirun: MPI4PY_LIBMPI names the one to use",
            )
        store, self._invitation = meet(world, seconds)
        return store

    def reach(self) -> RendezvousOptions:
        """Returns how the ranks reach each other, as :meth:`store` found: other hosts over the way to the store."""
        from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
        from lowerkit.runtimes.collective.rendezvous.host import address_towards

        token = self._invitation.get("token")
        host, port = self._invitation.get("host"), self._invitation.get("port", 0)
        interface = None if host is None else address_towards(host, port)
        return RendezvousOptions(token=None if token is None else str(token).encode(), interface=interface)

    def __enter__(self) -> Self:
        self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._mpi is not None and not self._mpi.Is_finalized():
            self._mpi.Finalize()


def load_mpi(*, finalize: bool) -> Any:
    """Returns the module ``mpi4py.MPI``.

    Args:
        finalize: whether mpi4py ends MPI at the end of the process.

    Raises:
        UsageError: LK1007, there is no mpi4py or no MPI library.
    """
    try:
        import mpi4py

        if not finalize:
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError(
            "LK1007", f"ranks of mpirun meet through mpi4py: {error}", hint="pip install 'lowerkit[mpi]'"
        ) from error
    except RuntimeError as error:  # mpi4py looks for libmpi when it is imported
        raise UsageError(
            "LK1007", f"mpi4py finds no MPI library: {error}", hint="MPI4PY_LIBMPI names that of mpirun"
        ) from error
    return MPI


def meet(world: Any, seconds: float, addresses: Sequence[str] | None = None) -> tuple[Store, dict[str, Any]]:
    """Returns the store of all ranks and the invitation, with the address under which this rank found it.

    Args:
        world: a communicator of mpi4py.
        seconds: until all ranks must be there.
        addresses: of this host, rank 0's invitation; None: those of its interfaces.

    Raises:
        CollectiveFault: LK8007, ranks did not come, or the store cannot be reached.
    """
    from lowerkit.runtimes.collective.rendezvous.host import host_identity

    own = hashlib.sha256(host_identity().encode()).digest()
    identities = bytearray(len(own) * world.Get_size())
    _await(world.Iallgather(own, identities), seconds, world)
    one_host = identities == own * world.Get_size()
    store: Store | None = None
    data = bytearray(_INVITATION_BYTES)
    if world.Get_rank() == 0:
        try:
            store, invitation = _folder() if one_host else _kept(addresses)
        except (LowerkitError, RuntimeError, OSError) as error:
            invitation = {"failure": str(error)[: _INVITATION_BYTES // 4]}
        text = json.dumps(invitation).encode()
        assert len(text) <= len(data), "a host has hundreds of addresses"
        data[: len(text)] = text
    _await(world.Ibcast(data), seconds, world)
    invitation = json.loads(bytes(data).rstrip(b"\0"))
    return _accepted(world, seconds, store, invitation)


def _accepted(
    world: Any, seconds: float, store: Store | None, invitation: dict[str, Any]
) -> tuple[Store, dict[str, Any]]:
    from lowerkit.runtimes.collective.failures import not_formed
    from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore

    rank = world.Get_rank()
    if "failure" in invitation:
        raise not_formed(f"rank {rank}: rank 0 could not make a store: {invitation['failure']}")
    if "folder" in invitation:
        return store or DirectoryStore(invitation["folder"]), invitation
    hosts: list[str] = invitation["hosts"]
    found = [store or _found(host, invitation["port"], invitation["nonce"]) for host in hosts]
    bits = sum(1 << number for number, one in enumerate(found) if one is not None)
    everywhere = bytearray(_SET_BYTES * world.Get_size())
    _await(world.Iallgather(bits.to_bytes(_SET_BYTES, "little"), everywhere), seconds, world)
    sets = [
        int.from_bytes(everywhere[start : start + _SET_BYTES], "little")
        for start in range(0, len(everywhere), _SET_BYTES)
    ]
    for number, (host, one) in enumerate(zip(hosts, found, strict=True)):
        if one is not None and all(each >> number & 1 for each in sets):
            return one, {**invitation, "host": host}
    ways = [[host for number, host in enumerate(hosts) if each >> number & 1] for each in sets]
    raise not_formed(
        f"rank {rank}: no address of rank 0's host leads all ranks to its store at port {invitation['port']}: "
        + ", ".join(hosts),
        details=[f"rank {one} finds it at {', '.join(way) or 'none'}" for one, way in enumerate(ways)],
        hint="ranks on several hosts need TCP between them",
    )


def _folder() -> tuple[Store, dict[str, Any]]:
    """Makes the store of ranks on one host; its folder goes at the end of this process."""
    from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore

    folder = Path(tempfile.mkdtemp(prefix="lowerkit-mpi-"))
    atexit.register(_remove, folder, os.getpid())  # others may use it until then
    return DirectoryStore(folder), {"folder": str(folder), **_drawn_token()}


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(addresses: Sequence[str] | None) -> tuple[Store, dict[str, Any]]:
    """Makes the store of ranks on several hosts, which this process keeps."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    from lowerkit.distributed.torch_store import TorchStore

    hosts = list(_addresses() if addresses is None else addresses)[: 8 * _SET_BYTES]
    if not hosts:
        raise OSError("its host has no network interface with an address beside loopback")
    kept = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=_TRY_SECONDS), wait_for_workers=False)
    store, nonce = TorchStore(kept), secrets.token_hex(16)
    store.set(_NONCE_KEY, nonce.encode())
    return store, {"hosts": hosts, "port": kept.port, "nonce": nonce, **_drawn_token()}


def _found(host: str, port: int, nonce: str) -> Store | None:
    """Returns the store at an address if it is the one with the nonce: the address may be another host's as well."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    from lowerkit.distributed.torch_store import TorchStore

    try:
        socket.create_connection((host, port), _TRY_SECONDS).close()  # torch itself would try again and again
        seconds = timedelta(seconds=_TRY_SECONDS)
        store = TorchStore(TCPStore(host, port, None, False, seconds, wait_for_workers=False))
        return store if store.get(_NONCE_KEY, _TRY_SECONDS) == nonce.encode() else None
    except (OSError, RuntimeError):
        return None


def _drawn_token() -> dict[str, str]:
    from lowerkit.runtimes.collective.rendezvous.job_token import ENVIRONMENT_VARIABLE, draw_token

    # mpirun may not pass the environment on to other hosts; a token that rank 0 was given stays what it is.
    return {"token": os.environ.get(ENVIRONMENT_VARIABLE) or draw_token()}


def _addresses() -> list[str]:
    from lowerkit.runtimes.collective.rendezvous.host import is_loopback, listening_address

    found: list[str] = []
    for _, name in socket.if_nameindex():
        try:
            found.append(listening_address(name))
        except LowerkitError:
            continue  # an interface without an address
    return [address for address in found if not is_loopback(address)]


def _await(request: Any, seconds: float, world: Any) -> None:
    """Waits for an operation of all ranks.

    Raises:
        CollectiveFault: LK8007, it is not over in time; MPI does not say who is missing.
    """
    from lowerkit.runtimes.collective.failures import not_formed

    end = time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > end:
            raise not_formed(
                f"rank {world.Get_rank()}: not all {world.Get_size()} ranks of mpirun came within {seconds:.3g} s",
                hint="see the output of the others; --rank-deadline waits longer",
            )
        time.sleep(_POLL_SECONDS)
