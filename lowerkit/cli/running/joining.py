"""How a rank of ``lowerkit run`` joins the others: by lowerkit's own engine, MPI or gloo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lowerkit.cli.running.place import LocalPlace
from lowerkit.errors import UsageError
from lowerkit.launching.mpi import MpiPlace
from lowerkit.launching.torchrun import LauncherPlace

if TYPE_CHECKING:
    from lowerkit.cli.running.request import RunRequest
    from lowerkit.runtimes.collective.rendezvous.store import Store
    from lowerkit.runtimes.mesh.ranks import Connect
    from lowerkit.runtimes.session import Session

ENGINES = ("lowerkit", "mpi", "gloo")


def check_engine(engine: str, place: type[LocalPlace | LauncherPlace | MpiPlace] | None) -> None:
    """Checks that ranks which are started so can have an engine.

    Args:
        engine: one of :data:`ENGINES`.
        place: how they are started; None: they are simulated, or there is one rank alone.

    Raises:
        UsageError: LK1009, they cannot.
    """
    starters = {"mpi": (MpiPlace,), "gloo": (LocalPlace, LauncherPlace)}
    if engine in starters and place not in starters[engine]:
        by = {"mpi": "mpirun", "gloo": "--nproc or torchrun"}[engine]
        raise UsageError("LK1009", f"--engine {engine} is for ranks that are started by {by}")


def joining(request: RunRequest, place: LocalPlace | LauncherPlace | MpiPlace) -> Callable[[], Session]:
    """Returns what meets the other ranks and loads this rank's part of the artifact; its modules are loaded.

    What it returns raises as :func:`~lowerkit.runtimes.mesh.ranks.join_mesh`.
    """
    from lowerkit.runtimes.mesh.ranks import join_mesh

    deadline = request.rank_deadline
    options: dict[str, Any] = {"threads": request.threads, "target": request.target, "device": request.device}
    if request.engine == "mpi":
        from lowerkit.launching.loading import load
        from lowerkit.runtimes.collective.mpi.library import load_mpi

        return partial(load, request.artifact, group=load_mpi().COMM_WORLD, deadline=deadline, **options)
    connect_by = _gloo() if request.engine == "gloo" else None

    def join() -> Session:
        store = place.store(deadline)
        if connect_by is not None:
            options["connect"] = connect_by(place, store)
        else:
            options["reach"] = place.reach()
        return join_mesh(request.artifact, store, place.rank, place.size, deadline=deadline, **options)

    return join


def _gloo() -> Callable[[LocalPlace | LauncherPlace | MpiPlace, Store], Connect]:
    from torch._C._distributed_c10d import FileStore

    from lowerkit.distributed.gloo.ranks import GlooRanks
    from lowerkit.distributed.torch_store import TorchStore

    def connect_by(place: LocalPlace | LauncherPlace | MpiPlace, store: Store) -> Connect:
        if isinstance(place, LocalPlace):
            return GlooRanks(FileStore(str(place.folder / "gloo"), place.size), place.rank, place.size).connect
        assert isinstance(store, TorchStore), "a launcher of PyTorch has one"
        return GlooRanks(store.store, place.rank, place.size).connect

    return connect_by
