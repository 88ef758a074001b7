"""Runs of an artifact for a mesh: one rank in this process, all of them started by it, or all of them simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.cli.running.place import LauncherPlace, LocalPlace
from lowerkit.cli.running.report import reported
from lowerkit.cli.supervise import read_manifest, supervise_devices
from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.cli.running.request import RunRequest
    from lowerkit.runtimes.manifest import Manifest


def run_mesh(request: RunRequest, manifest: Manifest, nproc: int | None, sim: int | None) -> None:
    """Runs all ranks, or the one whose place a launcher's variables name; prints and writes what rank 0 gives.

    Args:
        request: what was asked for.
        manifest: of the artifact.
        nproc: ranks to start as processes of this machine, or None.
        sim: ranks to run in this process, or None.

    Raises:
        UsageError: LK1009, the artifact has no mesh, or one of another size, or there are no ranks at all.
        LowerkitError: as the run.
    """
    from lowerkit.runtimes.cpu.requirements import choose_program
    from lowerkit.runtimes.mesh.sizes import check_group_size

    program = choose_program(manifest, request.target)
    size = sim if nproc is None else nproc
    if size is not None:
        check_group_size(request.artifact, program, size)
        if nproc is None:
            from lowerkit.cli.running.simulation import run_in_simulation

            supervise_devices(manifest)
            run_in_simulation(request, program, size)
        else:
            from lowerkit.cli.running.launcher import launch

            launch(size, sys.argv)
        return
    place = LauncherPlace.of_environment()
    if place is None:
        check_group_size(request.artifact, program, None)
    else:
        run_rank(request, manifest, place)


def run_started_rank(request: RunRequest, place_text: str) -> None:
    """Runs the rank whose place ``--nproc`` wrote; its diagnostic goes to the process that started it."""
    place = LocalPlace.of(place_text)
    with reported(place.report):
        run_rank(request, read_manifest(request.artifact), place)


def run_rank(request: RunRequest, manifest: Manifest, place: LocalPlace | LauncherPlace) -> None:
    """Runs one rank in this process; rank 0 prints and writes the outputs, when all ranks have them."""
    supervise_devices(manifest)
    from lowerkit.cli.session_inputs import read_inputs, write_states
    from lowerkit.runtimes.cpu.requirements import choose_program
    from lowerkit.runtimes.mesh.ranks import join_mesh

    program = choose_program(manifest, request.target)
    inputs = read_inputs(program.signature, request.inputs, request.seed)
    states = None if request.state is None else _rank_states(request.state, place.rank, place.size)
    session = join_mesh(
        request.artifact,
        place.store(request.rank_deadline),
        place.rank,
        place.size,
        deadline=request.rank_deadline,
        reach=place.reach(),
        threads=request.threads,
        target=request.target,
        device=request.device,
    )
