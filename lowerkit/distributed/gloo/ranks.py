"""The ranks of a process group or a device mesh of torch.distributed, as those of a compiled program."""

# torch's stubs do not export what torch.distributed imports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lowerkit.distributed.gloo.group import GlooSettings
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.torch_store import TorchStore
from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mesh.places import mesh_label

_BACKEND = "gloo"
_loaded: Counter[str] = Counter()
"""How often programs were loaded by the ranks of a group: they meet under another name each time."""


@dataclass(frozen=True)
class GlooRanks:
    """Ranks that connect by gloo for one program.

    Attributes:
        store: where they meet, used for nothing else.
        rank, size: of this one and of all.
        label: the mesh that a program of theirs must have, ``dp=2,tp=2``; empty: it needs as many ranks.
    """

    store: dist.Store
    rank: int
    size: int
    label: str = ""

    @staticmethod
    def of(group: dist.ProcessGroup | DeviceMesh) -> GlooRanks:
        """Returns the ranks of a group; all of them call it, equally often.

        Raises:
            UsageError: LK1010, its backend for tensors on CPUs is not gloo, or this process is not in it.
        """
        if isinstance(group, DeviceMesh):
            return _of_device_mesh(group)
        _require_gloo(group, f"the process group {group.group_name!r}")
        return GlooRanks(_own_store(group.get_group_store(), "group"), group.rank(), group.size())

    def connect(self, program: ProgramSpec, name: str, deadline: float) -> Group:
        """See :class:`lowerkit.runtimes.mesh.ranks.Connect`."""
        settings = GlooSettings(
            RendezvousOptions(timeout=deadline), deadline, None, None, self.store, name, engine=_BACKEND
        )
        group = Group(TorchStore(self.store), name, self.rank, self.size, settings)
        if self.label and self.label != mesh_label(program):  # said when all are there: nobody waits for this rank
            group.close()
            raise UsageError(
                "LK8021",
                f"the DeviceMesh is {self.label}, and the artifact is for a mesh {mesh_label(program)}",
                hint="give its axes the names and sizes of the artifact's mesh, in their order",
            )
        return group


def own_group(group: Any) -> Group | None:
    """Returns the group behind a process group of the backend ``lowerkit``, or None."""
    return group.group if isinstance(group, ProcessGroup) else None


def _of_device_mesh(mesh: DeviceMesh) -> GlooRanks:
    members: list[int] = mesh.mesh.flatten().tolist()
    if dist.get_rank() not in members:
        raise usage(f"rank {dist.get_rank()} is not in the DeviceMesh: it has ranks {members}")
    _require_gloo(mesh.get_group(0), "the DeviceMesh")
    names = mesh.mesh_dim_names
    label = "" if names is None else ",".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))
    place = hashlib.sha256(repr(members).encode()).hexdigest()[:16]
    world = dist.group.WORLD
    assert world is not None, "it has this rank"
    return GlooRanks(_own_store(world.get_group_store(), place), members.index(dist.get_rank()), len(members), label)


def _own_store(store: dist.Store, place: str) -> dist.Store:
    _loaded[place] += 1
    return dist.PrefixStore(f"lowerkit/programs/{place}/{_loaded[place]}/", store)


def _require_gloo(group: dist.ProcessGroup, what: str) -> None:
    backends: dict[str, str] = {}
    for each in str(dist.get_backend_config(group)).split(","):
        device, _, name = each.partition(":")
        backends[device] = name
    found = backends.get("cpu")
    if found != _BACKEND:
        raise usage(
            f"{what} has {'the backend ' + found if found else 'no backend'} for memory of CPUs, where the collectives "
            "of a program are; they run on gloo, and on lowerkit's own backend",
            hint="init_process_group('cpu:gloo,cuda:nccl') has both; MPI is loaded with a communicator of mpi4py",
        )
