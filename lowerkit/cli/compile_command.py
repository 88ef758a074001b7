"""`lowerkit compile`: a model file in, one artifact out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lowerkit.cli.model_options import MODEL_OPTIONS, capture_model, model_options, refuse_given
from lowerkit.cli.output import json_option, note, print_json, progress, quiet_option, verbose_option
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.target_options import (
    Share,
    allow_option,
    device_option,
    invariant_option,
    mesh_option,
    shard_option,
    target_option,
)
from lowerkit.errors import InputError, UsageError


@click.command("compile")
@model_options
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The artifact to write. [default: MODEL's stem + .lk]"
)
@target_option
@allow_option
@device_option
@mesh_option
@invariant_option
@shard_option
@click.option("--require-offload", type=Share(), help="Fail unless the accelerators take this share of the FLOPs: 99%.")
@click.option("--keep-on-host", multiple=True, metavar="OP", help="Offer OP (softmax, or a node's name) to nobody.")
@click.option("--dump-ir", type=click.Path(path_type=Path), help="Write the IR after each pass into this folder.")
@click.option("--compile-to", metavar="STAGE", help="Stop after this stage and write its IR to the output.")
@click.option("--compile-from", metavar="STAGE", help="MODEL is a file that --compile-to STAGE wrote.")
@click.option(
    "--tiles",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tiles of products for CUDA that `lowerkit tune` measured. [default: the predicted best]",
)
@click.option(
    "--witness", is_flag=True, help="Compare each distinct op with eager, each kernel with the interpreter, first."
)
@click.option("--workers", type=int, help="Processes that compile kernels. [default: one a core]")
@click.option("--no-cache", is_flag=True, help="Neither read nor write the caches of captured programs and of kernels.")
@json_option
@verbose_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    output: Path | None,
    target: str,
    allow: tuple[str, ...],
    device: str | None,
    mesh: str | None,
    invariant: bool,
    plan: Path | None,
    require_offload: float | None,
    keep_on_host: tuple[str, ...],
    dump_ir: Path | None,
    compile_to: str | None,
    compile_from: str | None,
    tiles: Path | None,
    witness: bool,
    workers: int | None,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Compile MODEL (.pt2, .pt, .onnx, file.py:factory or package.module:factory) into one file."""
    started = time.perf_counter()
    stem = Path(model.partition(":")[2] or model).stem if ":" in model else Path(model).stem
    output = output or Path(f"{stem}.lk" if compile_to is None else f"{stem}.{compile_to}.mlir")
    check_output(model, output)

    supervise_targets(target)

    from lowerkit.compiler import CompileOptions, compile_program
    from lowerkit.pipeline import STAGES
    from lowerkit.spmd.sharding import sharding_of

    for stage in (compile_to, compile_from):
        if stage is not None and stage not in STAGES[:-1]:
            raise UsageError("LK3003", f"there is no stage {stage!r}", hint="the stages are: " + ", ".join(STAGES[:-1]))
    if compile_from is not None:
        refuse_given(MODEL_OPTIONS, "with --compile-from: the file was captured before")
    if compile_to is not None:
        refuse_given(["workers", "require_offload", "tiles", "witness"], "with --compile-to: no kernel is compiled")
    if witness and compile_from is not None:
        refuse_given(["compile_from"], "with --witness: ops are compared as they were captured")
    options = CompileOptions(
        target=target,
        allow=frozenset(allow),
        device=device,
        keep_on_host=frozenset(keep_on_host),
        require_offload=require_offload,
        dump_folder=dump_ir,
        workers=workers,
        use_cache=not no_cache,
        tiles=tiles,
    )
    witnessed: list[str] = []
    with progress(quiet) as show:
        show("capturing")
        if compile_from is not None:
            from lowerkit.program.stage_file import read_stage

            program = read_stage(Path(model), compile_from)
            if program.mesh:
                refuse_given(["mesh", "plan", "invariant"], "on a program that is split among ranks already")
        else:
            program = capture_model(model, inputs, dynamic, seed, use_cache=not no_cache)
            if witness and program.exported is None and not model.endswith(".onnx"):
                # The cache of captured programs has no ops of PyTorch's to compare.
                program = capture_model(model, inputs, dynamic, seed, use_cache=False)
        captured = time.perf_counter()
        options = replace(options, sharding=sharding_of(mesh, plan, program, invariant=invariant, target=target))
        if compile_to is not None:
            from lowerkit.compiler import lower_program
            from lowerkit.program.stage_file import write_stage

            remarks = lower_program(program, compile_to, options, show).remarks
            write_stage(program, output)
            summary: dict[str, Any] = {"stage": compile_to}
            offload: list[str] = []
        else:
            if witness:
                from lowerkit.parity.witness.counts import describe as describe_witness
                from lowerkit.parity.witness.record import witness_kernels_of, witness_ops_of

                ops = witness_ops_of(program, options, show)
                compiled = compile_program(program, options, show)
                witness_record = witness_kernels_of(program, compiled.lowered, ops, options, show).to_json()
                compiled.state_witness(witness_record)
                left_out = [f"not compared: {line}" for line in witness_record["not_compared"]]
                witnessed = [describe_witness(witness_record), *left_out]
            else:
                compiled = compile_program(program, options, show)
            show("writing")
            compiled.save(output)
            remarks, summary = compiled.remarks, compiled.summary()
            offload = [each.render() for each in compiled.offload]
            offload += [compiled.sharding.render(), *compiled.sharding.reasons] if compiled.sharding else []
    finished = time.perf_counter()
    for line in (*offload, *witnessed):
        note(line, quiet)
    if verbose:
        for remark in remarks:
            note(f"remark: {remark}")
    document = {
        "output": str(output),
        "bytes": output.stat().st_size,
        "seconds": {"capture": captured - started, "compile": finished - captured, "total": finished - started},
        **summary,
        "remarks": remarks,
    }
    if as_json:
        print_json("compile", document)
    else:
        details = f"stage {compile_to}" if compile_to else describe(summary)
        click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {details} ({finished - started:.1f} s)")


def describe(summary: dict[str, Any]) -> str:
    """Returns the summary of a compilation in a line for people."""
    return (
        f"{summary['steps']} steps, {summary['kernels']} kernels for {', '.join(dict.fromkeys(summary['targets']))}, "
        f"weights {summary['weight_bytes'] / 1e6:.1f} MB, code {summary['code_bytes'] / 1e3:.0f} kB"
    )


def check_output(model: str, output: Path) -> None:
    """Raises when the artifact would overwrite the model, or cannot be written where it is asked for."""
    try:
        paths = (Path(model), Path(model.rpartition(":")[0] or model))  # a file, or that of a factory
        is_same = output.exists() and any(path.exists() and path.samefile(output) for path in paths)
    except (OSError, ValueError):  # no such model: capture says so
        is_same = False
    if is_same:
        raise UsageError("LK1006", f"the output {output} would overwrite the model", hint="name another file with -o")
    if not output.parent.is_dir():
        raise InputError(
            "LK1005", f"the folder {output.parent} does not exist", hint="create it, or choose another with -o"
        )
    if output.is_dir():
        raise InputError("LK1005", f"{output} is a folder", hint="name a file with -o")
