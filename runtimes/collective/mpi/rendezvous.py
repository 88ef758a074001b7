"""How ranks of a group find each other in MPI: through the group's store.

Each rank publishes its rank and size in MPI's world; all then make a communicator of the group's ranks, in the group's
order. So groups need not have the ranks that MPI gave out, and ranks that were not started together find out here,
where MPI would wait for ever.
"""

from __future__ import annotations

import json
import secrets
import zlib
from typing import Any

from lowerkit.runtimes.collective.failures import not_formed
from lowerkit.runtimes.collective.mpi.library import load_mpi
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.store import Store

# Every MPI has at least as many tags.
_TAGS = 1 << 15
_IDENTITY_BYTES = 16


def meet_in_mpi(store: Store, name: str, rank: int, size: int, timeout: float) -> tuple[Any, tuple[int, ...], str]:
    """Returns a communicator of the group's ranks, those on this rank's host, and the identity of this meeting.

    The last step is MPI's and has no deadline; it is begun when all ranks are known to be there.

    Args:
        store: reached by all ranks.
        name: of the group.
        rank: in the group.
        size: of the group.
        timeout: seconds until all ranks must have published themselves.

    Raises:
        UsageError: LK1007, LK1010, there is no MPI that can be used.
        CollectiveFault: LK8007, a rank did not come, or the ranks were not started by one ``mpirun``.
    """
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    own = {"rank": world.Get_rank(), "size": world.Get_size(), "host": mpi.Get_processor_name()}
    store.set(f"{name}/mpi/{rank}", json.dumps(own).encode())
    published = _published(store, name, size, timeout)
    places = [(row["rank"], row["size"]) for row in published]
    if len(set(places)) < size or len({count for _, count in places}) > 1:
        raise not_formed(
            f"the ranks of group {name!r} are not ranks of one MPI job",
            details=[f"rank {one} is rank {place[0]} of {place[1]} in MPI" for one, place in enumerate(places)],
            hint="start them with mpirun -n RANKS python ..., not with torchrun",
        )
    members = world.Get_group().Incl([place for place, _ in places])
    communicator = world.Create_group(members, zlib.crc32(name.encode()) % _TAGS)
    communicator.Set_name(f"lowerkit {name}"[: mpi.MAX_OBJECT_NAME - 1])
    identity = bytearray(secrets.token_bytes(_IDENTITY_BYTES))
    communicator.Bcast(identity)
    communicator.Barrier()  # all have read what all published
    store.delete(f"{name}/mpi/{rank}")
    local_ranks = tuple(one for one in range(size) if published[one]["host"] == own["host"])
    return communicator, local_ranks, identity.hex()


def _published(store: Store, name: str, size: int, timeout: float) -> list[dict[str, Any]]:
    deadline = Deadline(timeout)
    rows: list[dict[str, Any]] = []
    missing: list[int] = []
    for rank in range(size):
        try:
            rows.append(json.loads(store.get(f"{name}/mpi/{rank}", deadline.remaining())))
        except TimeoutError:
            missing.append(rank)
    if missing:
        named = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        raise not_formed(f"group {name!r}: {named} did not come within {timeout:.3g} s")
    return rows
