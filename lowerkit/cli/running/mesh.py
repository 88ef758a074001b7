"""Runs of an artifact for a mesh: one rank in this process, all of them started by it, or all of them simulated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lowerkit.cli.running.joining import check_engine, joining
from lowerkit.cli.running.place import LocalPlace
from lowerkit.cli.running.report import named, reported
from lowerkit.cli.supervise import read_manifest, supervise_devices
from lowerkit.errors import UsageError
from lowerkit.launching.mpi import MpiPlace
from lowerkit.launching.torchrun import LauncherPlace

if TYPE_CHECKING:
    from lowerkit.cli.running.request import RunRequest
    from lowerkit.runtimes.manifest import Manifest, ProgramSpec


def run_ranks(request: RunRequest, manifest: Manifest, nproc: int | None, sim: int | None) -> bool:
    """Runs all ranks, or the one whose place a launcher's variables name; prints and writes what rank 0 gives.

    Args:
        request: what was asked for.
        manifest: of the artifact.
        nproc: ranks to start as processes of this machine, or None.
        sim: ranks to run in this process, or None.

    Returns:
        Whether there were ranks to run: not if neither is given and no launcher started this process.

    Raises:
        UsageError: LK8021, the artifact has no mesh, or one of another size.
        LowerkitError: as the run.
    """
    from lowerkit.runtimes.cpu.requirements import choose_program
    from lowerkit.runtimes.mesh.places import rank_with_place

    program = choose_program(manifest, request.target)
    if nproc is not None:
        from lowerkit.cli.running.launcher import launch

        _check_size(request, program, "--nproc", nproc)
        check_engine(request.engine, LocalPlace)
        launch([rank_with_place(program.mesh, rank) for rank in range(nproc)], sys.argv)
    elif sim is not None:
        from lowerkit.cli.running.simulation import run_in_simulation

        _check_size(request, program, "--sim", sim)
        check_engine(request.engine, None)
        supervise_devices(manifest)
        run_in_simulation(request, program, sim)
    elif (place := LauncherPlace.of_environment()) is not None:
        _check_size(request, program, "WORLD_SIZE", place.size)
        check_engine(request.engine, LauncherPlace)
        with named(place.rank, rank_with_place(program.mesh, place.rank)):
            run_rank(request, manifest, place)
    elif (mpi := MpiPlace.of_environment()) is not None:
        _check_size(request, program, "mpirun -n", mpi.size)
        check_engine(request.engine, MpiPlace)
        with named(mpi.rank, rank_with_place(program.mesh, mpi.rank)), mpi:
            run_rank(request, manifest, mpi)
    else:
        return False
    return True


def run_started_rank(request: RunRequest, place_text: str) -> None:
    """Runs the rank whose place ``--nproc`` wrote; its diagnostic goes to the process that started it."""
    place = LocalPlace.of(place_text)
    with reported(place.report):
        run_rank(request, read_manifest(request.artifact), place)


def run_rank(request: RunRequest, manifest: Manifest, place: LocalPlace | LauncherPlace | MpiPlace) -> None:
    """Runs one rank in this process; rank 0 prints and writes the outputs, when all ranks have them."""
    supervise_devices(manifest)
    from lowerkit.cli.running.rank_states import rank_states, require_same_parts, write_parts
    from lowerkit.cli.session_inputs import read_inputs, read_states, write_states
    from lowerkit.runtimes.cpu.requirements import choose_program

    # What is wrong on this rank alone is known before the others wait for it.
    program = choose_program(manifest, request.target, rank=place.rank)
    signature = program.signature
    inputs = read_inputs(signature, request.inputs, request.seed)
    states = None if request.state is None else rank_states(request.state, place.rank, place.size)
    if states is not None:
        require_same_parts(states, program)
    initial = {} if states is None else read_states(signature, states)
    join = joining(request, place)
    with request.limited():
        session = join()
        session.set_state(initial)
        results = session.run(**inputs)
        assert session.group is not None, "it was joined"
        session.group.run(session.group.calls.barrier())  # nothing is written unless all ranks have their outputs
    if states is not None:
        write_states(session.state, states)
        write_parts(states, program)
    if place.rank == 0:
        request.give(signature, results)


def _check_size(request: RunRequest, program: ProgramSpec, name: str, size: int) -> None:
    """Checks that ``size`` ranks, which ``name`` asked for, are those of the program's mesh."""
    from lowerkit.runtimes.mesh.places import mesh_label, mesh_size

    label, count = mesh_label(program), mesh_size(program.mesh)
    if not label:
        raise UsageError(
            "LK8021",
            f"{name} is {size}, and {request.artifact} is for one rank",
            hint=f"run it without {name}, or compile the model with --mesh",
        )
    if size != count:
        way = f"start {count} ranks" if name == "WORLD_SIZE" else f"give {name} {count}"
        raise UsageError(
            "LK8021",
            f"{name} is {size}, and {request.artifact} is for a mesh {label}",
            hint=f"{way}, or compile the model for {size} ranks",
        )
