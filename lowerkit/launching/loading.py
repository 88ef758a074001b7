"""``lowerkit.load``: a session, replicas in one process, or one rank's part of a mesh, whoever connects its ranks.

A group is lowerkit's own, a communicator of mpi4py, or a process group or device mesh of torch.distributed. The ranks
of the latter two meet as those of :func:`~lowerkit.runtimes.mesh.ranks.join_mesh` do, and connect by MPI and gloo.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from lowerkit.errors import UsageError
from lowerkit.runtimes.manifest import MAIN_PROGRAM
from lowerkit.runtimes.session import Integrity, Session

if TYPE_CHECKING:
    from mpi4py.MPI import Comm
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.rendezvous.store import Store
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.runtimes.mesh.ranks import Connect
    from lowerkit.runtimes.replicas.session import ReplicatedSession

    Ranks: TypeAlias = Group | Comm | ProcessGroup | DeviceMesh


@overload
def load(
    path: str | os.PathLike[str],
    *,
    replicas: None = None,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: Ranks | None = None,
    deadline: float | None = None,
) -> Session: ...


@overload
def load(
    path: str | os.PathLike[str],
    *,
    replicas: int,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: None = None,
    deadline: None = None,
) -> ReplicatedSession: ...


def load(
    path: str | os.PathLike[str],
    *,
    replicas: int | None = None,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: Ranks | None = None,
    deadline: float | None = None,
) -> Session | ReplicatedSession:
    """Loads an artifact.

    Args:
        path: the ``.lk`` file.
        replicas: None, or how many copies run the rows of each batch at the same time, in this process.
        threads: of a run, or of each replica; None: the physical cores this process may use, divided by the replicas
            or by the ranks on this host.
        integrity, target, program, device: as for :meth:`~lowerkit.runtimes.session.Session.load`.
        group: the ranks that run a program for a mesh together, of which this process is one; all of them call this.
            lowerkit's own group; ``MPI.COMM_WORLD`` or another communicator of mpi4py within the job; a process group
            or DeviceMesh of torch.distributed with the backend gloo or lowerkit. They are numbered as the mesh is,
            row-major. The connections that a session of MPI or gloo makes end with it.
        deadline: seconds until all ranks must be there, and that a rank may be late in one collective; of a group of
            mpi4py or torch.distributed, None: 120. lowerkit's own group has its own.

    Raises:
        UsageError: LK1009, options exclude each other; LK1010, ``group`` is none, or its backend runs no programs;
            LK8021, its ranks do not fit the mesh of the program.
        CollectiveFault: LK8022, ranks load different artifacts; LK8007, ranks did not come.
        LowerkitError: as :meth:`~lowerkit.runtimes.session.Session.load` and
            :meth:`~lowerkit.runtimes.replicas.session.ReplicatedSession.load`.
    """
    if group is not None and replicas is None:
        from lowerkit.runtimes.mesh.ranks import DEADLINE, join_mesh, load_rank

        seconds = DEADLINE if deadline is None else deadline
        ranks = _ranks_of(group, seconds)
        options: dict[str, Any] = {
            "threads": threads, "integrity": integrity, "target": target, "program": program, "device": device,
        }  # fmt: skip
        if isinstance(ranks, Meeting):
            return join_mesh(
                path, ranks.store, ranks.rank, ranks.size, deadline=seconds, connect=ranks.connect, **options
            )
        _refuse(deadline)
        return load_rank(path, ranks, **options)
    _refuse(deadline)
    if replicas is None:
        return Session.load(path, threads=threads, integrity=integrity, target=target, program=program, device=device)
    if group is not None:
        raise UsageError(
            "LK1009",
            f"replicas={replicas} and a group exclude each other",
            hint="replicas are copies in one process; the ranks of a group share one model",
        )
    from lowerkit.runtimes.replicas.session import ReplicatedSession

    return ReplicatedSession.load(
        path, replicas, threads=threads, integrity=integrity, target=target, program=program, device=device
    )


@dataclass(frozen=True)
class Meeting:
    """Ranks of another library: where they meet, which one this is, and how they connect then."""

    store: Store
    rank: int
    size: int
    connect: Connect


def _ranks_of(group: object, seconds: float) -> Group | Meeting:
    from lowerkit.runtimes.collective.failures import usage
    from lowerkit.runtimes.collective.group import Group

    if isinstance(group, Group):
        return group
    # Who has made one of these has imported what made it.
    mpi, torch = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
    if mpi is not None and isinstance(group, mpi.Intracomm):
        return of_communicator(group, seconds)
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    kinds = [torch.ProcessGroup] if torch is not None and torch.is_available() else []
    if isinstance(group, (*kinds, *([] if device_mesh is None else [device_mesh.DeviceMesh]))):
        return _of_torch(group)
    raise usage(
        f"group is a {type(group).__module__}.{type(group).__name__}, and expected are lowerkit's Group, an Intracomm "
        "of mpi4py, and a ProcessGroup or DeviceMesh of torch.distributed that this process is in",
    )


def of_communicator(communicator: Any, seconds: float) -> Meeting:
    """Returns the meeting of the ranks of a communicator of mpi4py, all of which call it.

    Raises:
        CollectiveFault: LK8007, they did not all come within ``seconds``.
    """
    from lowerkit.launching.mpi import meet
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions

    store, _ = meet(communicator, seconds)
    rank, size = communicator.Get_rank(), communicator.Get_size()

    def connect(program: ProgramSpec, name: str, deadline: float) -> Group:
        reach = RendezvousOptions(timeout=deadline)
        return Group.join(store, name, rank, size, reach, timeout=deadline, engine="mpi")

    return Meeting(store, rank, size, connect)


def _of_torch(group: Any) -> Group | Meeting:
    from lowerkit.distributed.gloo.ranks import GlooRanks, own_group
    from lowerkit.distributed.torch_store import TorchStore

    if (own := own_group(group)) is not None:
        return own
    ranks = GlooRanks.of(group)
    return Meeting(TorchStore(ranks.store), ranks.rank, ranks.size, ranks.connect)


def _refuse(deadline: float | None) -> None:
    if deadline is not None:
        raise UsageError(
            "LK1009",
            f"deadline={deadline} is for a group of mpi4py or torch.distributed",
            hint="lowerkit's own group has its timeout from where it was made",
        )
