"""`lowerkit bench`: a model beside its peers, interleaved in one run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.model_options import capture_model, model_options
from lowerkit.cli.output import json_option, note, print_json, print_table, progress, quiet_option
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.target_options import allow_option, device_option, target_option
from lowerkit.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from lowerkit.program.program import Program


@click.command("bench")
@model_options
@click.option(
    "--peers", default="eager", show_default=True, help="Comma-separated: eager,inductor,onnxruntime,openvino."
)
@click.option(
    "--dtype", type=click.Choice(["f32", "bf16"]), default="f32", show_default=True, help="For all contenders."
)
@click.option("--threads", type=int, help="Threads for all contenders. [default: the cores this process may use]")
@click.option("--seconds", default=20.0, show_default=True, help="How long to measure.")
@target_option
@allow_option
@device_option
@click.option("--steps", is_flag=True, help="Also print where our own time goes, step by step.")
@json_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    peers: str,
    dtype: str,
    threads: int | None,
    seconds: float,
    target: str,
    allow: tuple[str, ...],
    device: str | None,
    steps: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Time MODEL compiled by lowerkit and by its peers: equal threads, equal precision, rounds interleaved."""
    supervise_targets(target)
    from lowerkit.bench.interleave import time_interleaved
    from lowerkit.bench.peers import BenchModel, prepare_timed
    from lowerkit.compiler import CompileOptions, compile_program
    from lowerkit.parity.metrics import compare

    if threads is not None and threads < 1:
        raise UsageError("LK1009", f"--threads is {threads}, expected 1 or more")
    threads = threads or len(os.sched_getaffinity(0))
    contenders: dict[str, Any] = {}
    setup_seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    with progress(quiet) as show:
        show("capturing")
        started = time.perf_counter()
        program = capture_model(model, inputs, dynamic, seed, None if dtype == "f32" else dtype)
        names = [spec.name for spec in program.signature.inputs]
        arrays = program.example_inputs or []
        onnx_path = Path(model) if model.endswith(".onnx") else None
        arguments = program.arguments(arrays) if program.arguments is not None else (tuple(arrays), {})
        bench_model = BenchModel(module_of(program), onnx_path, arrays, names, arguments, dtype, threads)
        options = CompileOptions(target=target, allow=frozenset(allow), golden=False, device=device)
        compiled = compile_program(program, options, show)
        compiled.threads = threads
        session = compiled.session
        contenders["lowerkit"] = lambda: session.run(*arrays)
        setup_seconds["lowerkit"] = time.perf_counter() - started
        for peer in [name.strip() for name in peers.split(",") if name.strip()]:
            show(f"preparing {peer}")
            try:
                contenders[peer], setup_seconds[peer] = prepare_timed(peer, bench_model)
            except UnsupportedError as error:
                refused[peer] = error.message
                note(f"left out: {error.message}", quiet)
                continue
        show("measuring")
        ours = contenders["lowerkit"]()
        agreement = {
            name: compare(ours[0], run()[0]).to_json()["sqnr_db"]
            for name, run in contenders.items()
            if name != "lowerkit"
        }
        timings = time_interleaved(contenders, seconds=seconds)
    peers_json = {
        name: {**timing.to_json(), "setup_seconds": setup_seconds[name], "sqnr_db": agreement[name]}
        for name, timing in timings.items()
        if name != "lowerkit"
    }
    ours_json = {**timings["lowerkit"].to_json(), "setup_seconds": setup_seconds["lowerkit"]}
    if as_json:
        document = {"model": model, "dtype": dtype, "threads": threads, "target": session.program.label}
        print_json("bench", {**document, "lowerkit": ours_json, "peers": peers_json, "refused": refused})
    else:
        best = timings["lowerkit"].median_ms
        rows = [
            [name, t.median_ms, t.min_ms, t.p90_ms, best / t.median_ms, setup_seconds[name], t.rounds]
            for name, t in timings.items()
        ]
        columns = ["contender", "median ms", "min ms", "p90 ms", "lowerkit/it", "set-up s", "rounds"]
        print_table(f"{model}, {dtype}, {threads} threads", columns, rows)
    if steps:
        _print_steps(session, arrays)


def module_of(program: Program) -> Any:
    """Returns the module for peers that run PyTorch: the user's own, else the exported one; None for ONNX."""
    if program.eager_module is not None:
        return program.eager_module
    return program.exported.module(check_guards=False) if program.exported is not None else None


def _print_steps(session: Any, arrays: list[Any]) -> None:
    profiles = [session.profile(*arrays) for _ in range(5)]
    rows: list[list[object]] = []
    for runs in zip(*profiles, strict=True):
        best = min(runs, key=lambda step: step.nanoseconds)
        nanoseconds = max(best.nanoseconds, 1)
        rates = [best.flops / nanoseconds, best.bytes / 1e6, best.bytes / nanoseconds]
        rows.append([best.name, best.kind, best.family, best.nanoseconds / 1e3, *rates, best.location])
    rows.sort(key=lambda row: -float(str(row[3])))
    columns = ["step", "kind", "family", "us", "GFLOP/s", "MB", "GB/s", "source"]
    print_table("steps, slowest first", columns, rows[:40])
