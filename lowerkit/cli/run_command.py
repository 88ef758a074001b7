"""`lowerkit run`: an artifact and inputs in, one .npy file an output out."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option
from lowerkit.cli.running.joining import ENGINES, check_engine
from lowerkit.cli.running.request import RunRequest
from lowerkit.cli.running.simulation_options import SimulationOptions, simulation_options
from lowerkit.cli.supervise import read_manifest, supervise_devices
from lowerkit.cli.target_options import device_option, program_option
from lowerkit.errors import UsageError


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=@FILE.npy | NAME:SHAPE:DTYPE", help="One input; repeat."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the outputs, one NAME.npy each.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")
@click.option(
    "--threads", type=int, help="Threads of a rank. [default: the cores this process may use, divided by its ranks]"
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="A folder of NAME.npy files, one a state: where the run takes up, and where its final states go. "
    "Each rank of a mesh has a folder rankN in it.",
)
@click.option("--nproc", type=int, metavar="N", help="Start the N ranks of a mesh as processes of this machine.")
@click.option(
    "--sim", type=int, metavar="N", help="Run the N ranks of a mesh in this process, one after the other's calls."
)
@click.option(
    "--rank-deadline",
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="How long ranks wait for each other, to come and in each collective.",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Address space of each rank (RLIMIT_AS), 2GiB; a rank that needs more is refused.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="Who carries out what the ranks do together: lowerkit, MPI (under mpirun), or PyTorch's gloo.",
)
@simulation_options
@click.option("--rank-place", hidden=True, help="Which rank this process is: --nproc writes it.")
@program_option
@device_option
@json_option
def command(
    artifact: Path,
    inputs: tuple[str, ...],
    output: Path | None,
    seed: int,
    threads: int | None,
    state: Path | None,
    nproc: int | None,
    sim: int | None,
    rank_deadline: float,
    memory_limit: str | None,
    engine: str,
    simulated: SimulationOptions,
    rank_place: str | None,
    target: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Run ARTIFACT once; inputs that are not given are an error.

    An artifact for a mesh of ranks runs with --nproc, with --sim, or on ranks that a launcher started (torchrun).
    """
    request = RunRequest(
        artifact, inputs, seed, output, state, threads, target, device, rank_deadline, as_json, simulated, memory_limit,
        engine,
    )  # fmt: skip
    if rank_place is not None:
        from lowerkit.cli.running.mesh import run_started_rank

        run_started_rank(request, rank_place)
        return
    if nproc is not None and sim is not None:
        raise UsageError("LK1009", f"--nproc {nproc} and --sim {sim} exclude each other", hint="give one of them")
    if sim is None and (names := simulated.given()):
        raise UsageError("LK1009", f"{names[0]} is for --sim", hint="simulated ranks alone have such a network")
    if sim is not None and memory_limit is not None:
        raise UsageError("LK1009", "--memory-limit is no option of --sim", hint="simulated ranks are one process")
    manifest = read_manifest(artifact)
    if nproc is not None or sim is not None or any(program.mesh for program in manifest.programs):
        from lowerkit.cli.running.mesh import run_ranks

        if run_ranks(request, manifest, nproc, sim):
            return
    check_engine(engine, None)
    supervise_devices(manifest)
    from lowerkit.cli.session_inputs import read_inputs, read_states, write_states
    from lowerkit.runtimes.cpu.requirements import choose_program
    from lowerkit.runtimes.session import load

    signature = choose_program(manifest, target).signature
    given = read_inputs(signature, inputs, seed)
    initial = {} if state is None else read_states(signature, state)
    with request.limited():
        session = load(artifact, threads=threads, target=target, device=device)
        session.set_state(initial)
        results = session.run(**given)
    if state is not None:
        write_states(session.state, state)
    request.give(signature, results)
