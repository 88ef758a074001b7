"""``join_launched("two.lk")``: one rank's session in a script that ``torchrun`` or ``mpirun`` starts.

::

    session = join_launched("two.lk")      # the same line on every rank
    (logits,) = session.run(ids)

"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lowerkit.errors import UsageError
from lowerkit.launching.mpi import MpiPlace
from lowerkit.launching.torchrun import LauncherPlace

if TYPE_CHECKING:
    from lowerkit.runtimes.session import Session


def launched_place() -> LauncherPlace | MpiPlace | None:
    """Returns the place that a launcher gave this process, or None. ``torchrun`` under ``mpirun`` is the nearer one.

    Raises:
        UsageError: LK1009, variables of a launcher contradict each other.
    """
    return LauncherPlace.of_environment() or MpiPlace.of_environment()


def join_launched(
    path: str | os.PathLike[str], place: LauncherPlace | MpiPlace | None = None, **options: Any
) -> Session:
    """Meets the other ranks of a launcher and loads this rank's part of an artifact.

    Args:
        path: the ``.lk`` file.
        place: of this rank; None: the one that the environment names.
        options: as for :func:`~lowerkit.runtimes.mesh.ranks.join_mesh`: ``deadline``, ``threads`` and so on.

    Raises:
        UsageError: LK1009, no launcher started this process.
        LowerkitError: as :func:`~lowerkit.runtimes.mesh.ranks.join_mesh`.
    """
    from lowerkit.runtimes.mesh.ranks import DEADLINE, join_mesh

    place = launched_place() if place is None else place
    if place is None:
        raise UsageError(
            "LK1009",
            "no launcher started this process: neither RANK nor OMPI_COMM_WORLD_RANK nor PMI_RANK is set",
            hint="start it with torchrun or mpirun",
        )
    store = place.store(options.get("deadline", DEADLINE))
    return join_mesh(path, store, place.rank, place.size, reach=options.pop("reach", None) or place.reach(), **options)
