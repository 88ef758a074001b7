"""One rank of a compiled mesh, in a process of its own: what a serving script starts on every rank.

::

    store = DirectoryStore(folder)                           # or any store that all ranks reach
    session = join_mesh("two.lk", store, rank, size=2)       # returns when all ranks are there
    (logits,) = session.run(ids)                             # every rank makes the same calls

"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from lowerkit.errors import ResourceError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.runtimes.cpu.topology import threads_of_rank
from lowerkit.runtimes.manifest import MAIN_PROGRAM, ProgramSpec
from lowerkit.runtimes.mapping.address_space import limit_lines
from lowerkit.runtimes.mesh.agreement import RankStart, agree, agreement
from lowerkit.runtimes.session import Integrity, Session

DEADLINE = 120.0
"""Seconds that ranks wait for each other unless they are told otherwise."""


class Connect(Protocol):
    """Connects the ranks of a mesh by an engine of its own; all of them call it, and nobody else waits for them."""

    def __call__(self, program: ProgramSpec, name: str, deadline: float) -> Group:
        """Returns the group ``name`` of the ranks that run ``program``; operations may take ``deadline`` seconds.

        Raises:
            LowerkitError: LK8021, these are not the ranks of the program; LK8007, the group did not come about.
        """
        ...


def join_mesh(
    path: str | os.PathLike[str],
    store: Store,
    rank: int,
    size: int,
    *,
    name: str = "mesh",
    deadline: float = DEADLINE,
    reach: RendezvousOptions | None = None,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    record_folder: str | os.PathLike[str] | None = None,
    connect: Connect | None = None,
) -> Session:
    """Meets the other ranks of a mesh and loads this rank's part of an artifact.

    All ranks say what they start with before they connect, and one that starts with something else is refused by all.
    A rank runs the program that is for its place in the mesh, which is row-major over the axes in their order, and maps
    its own parts of the weights.
    The group of the ranks ends with the session.

    Args:
        path: the ``.lk`` file; every rank has the same one, or a copy.
        store: reached by all ranks.
        rank: this rank, from 0.
        size: number of ranks, that of the artifact's mesh.
        name: of the ranks' group; unique in the store among the groups that exist at one time.
        deadline: seconds until all ranks must be there, and that a rank may be late in one collective.
        reach: how ranks reach each other, its ``timeout`` aside; None: those of one host through shared memory, and a
            job token as ``job_token.py`` says.
        threads: of a run; None: the physical cores this process may use, divided by the ranks on this host.
        integrity, target, program, device: as for :meth:`~lowerkit.runtimes.session.Session.load`.
        record_folder: an existing folder that the rank writes its flight record into when the group fails.
        connect: makes the group when all ranks start with the same; None: one of lowerkit's own engine, as ``reach``
            and ``record_folder`` say, which are of no use otherwise.

    Raises:
        ArtifactError, RuntimeFault, ResourceError: as :meth:`~lowerkit.runtimes.session.Session.load`.
        CollectiveFault: LK8022, ranks start with something else; LK8007, ranks did not come, or the group did not come
            about; LK8012, another job token.
        UsageError: LK1009, ``threads`` is out of range; LK1010, ``rank`` is not one of ``size``.
    """
    if not 0 <= rank < size:
        raise usage(f"rank is {rank}, expected 0 to {size - 1}")
    threads_of_rank(threads)
    artifact = open_artifact(path, own_parts=True)
    try:
        chosen = choose_program(artifact.manifest, target, program, rank)
        own = RankStart.of(Path(path), artifact.manifest, chosen, size, _version())
        reach = replace(reach or RendezvousOptions(), timeout=deadline)
        with agreement(store, name, rank, own, deadline):
            if connect is None:
                group = Group.join(store, name, rank, size, reach, timeout=deadline, record_folder=record_folder)
            else:
                group = connect(chosen, name, deadline)
        try:
            threads_here = threads_of_rank(threads, len(group.local_ranks))
            session = Session(artifact, threads_here, integrity, chosen.label, program, device, group)
        except BaseException:
            group.close()
            raise
    except MemoryError as error:
        raise ResourceError("LK7002", f"no memory to load {path}", details=limit_lines()) from error
    finally:
        artifact.close()
    weakref.finalize(session, group.close)
    return session


def load_rank(
    path: str | os.PathLike[str],
    group: Group,
    *,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> Session:
    """Loads this rank's part of an artifact in a group that there is; all of its ranks do, and say what they load.

    Args:
        path: the ``.lk`` file; every rank has the same one, or a copy.
        group: of as many ranks as its mesh has.
        threads, integrity, target, program, device: as for :func:`join_mesh`.

    Raises:
        ArtifactError, RuntimeFault, ResourceError, UsageError: as :meth:`~lowerkit.runtimes.session.Session.load`.
        CollectiveFault: LK8022, ranks load something else; LK8008 to LK8012, the group failed.
    """
    threads_here = threads_of_rank(threads, len(group.local_ranks))
    artifact = open_artifact(path, own_parts=True)
    try:
        chosen = choose_program(artifact.manifest, target, program, group.rank)
        agree(group, RankStart.of(Path(path), artifact.manifest, chosen, group.size, _version()))
        return Session(artifact, threads_here, integrity, chosen.label, program, device, group)
    except MemoryError as error:
        raise ResourceError("LK7002", f"no memory to load {path}") from error
    finally:
        artifact.close()


def _version() -> str:
    try:
        return version("lowerkit")
    except PackageNotFoundError:
        return "unknown"
