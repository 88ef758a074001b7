"""`lowerkit run`: an artifact and inputs in, one .npy file an output out."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option, print_json, print_table
from lowerkit.cli.supervise import supervise_devices
from lowerkit.cli.target_options import device_option, program_option


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=@FILE.npy | NAME:SHAPE:DTYPE", help="One input; repeat."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the outputs, one NAME.npy each.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")
@click.option("--threads", type=int, help="Threads to run on. [default: the cores this process may use]")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="A folder of NAME.npy files, one a state: where the run takes up, and where its final states go.",
)
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
    target: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Run ARTIFACT once; inputs that are not given are an error."""
    supervise_devices(artifact)
    import numpy as np

    from lowerkit.cli.session_inputs import read_inputs, read_states, write_states
    from lowerkit.runtimes.session import load

    session = load(artifact, threads=threads, target=target, device=device)
    if state is not None:
        session.set_state(read_states(session.signature, state))
    results = session.run(**read_inputs(session.signature, inputs, seed))
    if state is not None:
        write_states(session.state, state)
    rows: list[list[object]] = []
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    for spec, array in zip(session.signature.outputs, results, strict=True):
        path = None if output is None else output / f"{spec.name.replace('/', '_')}.npy"
        if path is not None:
            np.save(path, array)
        rows.append([spec.name, spec.dtype, list(array.shape), str(path or "")])
    if as_json:
        keys = ("name", "dtype", "shape", "file")
        print_json("run", {"outputs": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table("", ["output", "dtype", "shape", "file"], rows)
