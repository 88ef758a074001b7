"""Attention, row-wise, elementwise and movement kernels on one thread, interleaved with torch eager.

Each round runs our kernel and torch one after another on the same data; the least time of each counts. GB/s counts
every operand and result once, GFLOP/s (attention only) 2 M T (D + Dv) per head, half of it when causal.

    python tools/bench/kernels_memory.py [--only softmax] [--cpu x86-64-v3] [--seconds 0.5] [--json out.json]
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from memory_problems import Problem, problems

from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import CpuFeatures, cpu_features
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    family: str
    microseconds: float
    torch_microseconds: float
    gigabytes_per_second: float
    gigaflops_per_second: float
    largest_difference: float


def measure(problem: Problem, cpu: CpuFeatures, seconds: float) -> Row:
    """Runs one problem and torch in turns."""
    view = RegionView.from_text(problem.text, problem.name.split()[0])
    plan = select_kernel(view, cpu)
    generator = np.random.default_rng(0)
    operands = [generator.standard_normal(shape).astype(np.float32) for shape in problem.shapes]
    result = np.empty(problem.result, np.float32)
    call, tasks = LoadedKernel(plan, cpu).bind([*operands, result])
    tensors = [torch.from_numpy(operand) for operand in operands]
    call(0, tasks)
    expected = problem.eager(*tensors)
    ours = theirs = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or ours == float("inf"):
        start = time.perf_counter()
        call(0, tasks)
        ours = min(ours, time.perf_counter() - start)
        start = time.perf_counter()
        problem.eager(*tensors)
        theirs = min(theirs, time.perf_counter() - start)
    moved = sum(operand.nbytes for operand in operands) + result.nbytes
    return Row(
        name=problem.name,
        family=plan.family,
        microseconds=ours * 1e6,
        torch_microseconds=theirs * 1e6,
        gigabytes_per_second=moved / ours / 1e9,
        gigaflops_per_second=problem.flops / ours / 1e9,
        largest_difference=float((torch.from_numpy(result) - expected).abs().max()),
    )


@click.command(help=__doc__)
@click.option("--only", default="", help="Problems whose name holds this text.")
@click.option("--cpu", "level", default="host", help="CPU level to compile for.")
@click.option("--seconds", default=0.5, help="Time for each problem.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the rows there.")
def main(only: str, level: str, seconds: float, path: Path | None) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    cpu = cpu_features(level)
    heads = {"us": 10, "torch us": 10, "x torch": 9, "GB/s": 8, "GFLOP/s": 9, "max diff": 10}
    columns = "".join(f"{head:>{width}}" for head, width in heads.items())
    click.echo(f"{'problem':<30}{'family':>12}{columns}")
    rows: list[Row] = []
    for problem in problems():
        if only not in problem.name:
            continue
        row = measure(problem, cpu, seconds)
        rows.append(row)
        click.echo(
            f"{row.name:<30}{row.family:>12}{row.microseconds:>10.1f}{row.torch_microseconds:>10.1f}"
            f"{row.torch_microseconds / row.microseconds:>9.2f}{row.gigabytes_per_second:>8.1f}"
            f"{row.gigaflops_per_second or 0:>9.1f}{row.largest_difference:>10.1e}"
        )
    if path is not None:
        path.write_text(json.dumps({"cpu": cpu.name, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
