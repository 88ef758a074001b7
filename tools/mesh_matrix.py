"""Small models under meshes, as `--shard auto` splits them: gate A with eager, in simulation and in processes.

    python tools/mesh_matrix.py [--models gpt2,llama] [--meshes "tp=2;pp=2"] [--processes] [--markdown FILE]
    python tools/mesh_matrix.py --models architectures

A cell compiles a model for a mesh, proves it, runs all ranks simulated, whose outputs must be equal to the bit, and
compares them with the model by gate A; with ``--per-op`` also what ranks hold whole, op by op. ``architectures`` are
those of tests/support/mesh/architectures.py. With ``--processes`` the ranks run as processes too, and must give these
values.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lowerkit.capture.capture import capture  # noqa: E402
from lowerkit.compiler import CompileOptions, compile_program  # noqa: E402
from lowerkit.errors import LowerkitError  # noqa: E402
from lowerkit.parity.check import check_program  # noqa: E402
from lowerkit.program.program import Program  # noqa: E402
from lowerkit.spmd.sharding import sharding_of  # noqa: E402
from tests.support.mesh.architectures import ARCHITECTURES, architecture  # noqa: E402
from tests.support.mesh.experts import mixture  # noqa: E402
from tests.support.models import benchmark_models  # noqa: E402

MODELS = ("gpt2", "llama", "bert_base", "vit_b16", "resnet50", "mixture")
MESHES = ("tp=2", "tp=4", "pp=2", "dp=2", "tp=2,pp=2")
_DEADLINE = 180.0
_CLOSE = 1e-5
"""Of the largest value: single precision."""


@dataclass(frozen=True)
class Cell:
    """What came of a model under a mesh."""

    model: str
    mesh: str
    passed: bool
    said: str
    seconds: float


def program_of(name: str) -> Program:
    """Captures a model with its example inputs."""
    if name in ARCHITECTURES:
        module, inputs = architecture(name)
    else:
        module, inputs = mixture() if name == "mixture" else benchmark_models().tiny(name)
    return capture(module, inputs)


def run_cell(name: str, mesh: str, *, processes: bool, per_op: bool = False) -> Cell:
    """Compiles, runs and compares."""
    started = time.perf_counter()
    try:
        program = program_of(name)
        plan = sharding_of(mesh, "auto", program)
        report = check_program(program, sharding=plan, per_op=per_op)
        passed, said = report.passed, report.mesh.partition(";")[0].partition(": ")[2]
        if passed and processes:
            distance = distance_of_processes(name, mesh)
            passed = distance <= _CLOSE
            said += "; processes give the same bits" if not distance else f"; processes differ by {distance:.0e}"
    except LowerkitError as error:
        passed, said = False, str(error).splitlines()[0]
    return Cell(name, mesh, passed, said, time.perf_counter() - started)


def distance_of_processes(name: str, mesh: str) -> float:
    """Returns how far what ranks as processes give is from what simulated ones give, by the largest value there is.

    More than two terms are summed in another order there.
    """
    program = program_of(name)
    compiled = compile_program(program, CompileOptions(sharding=sharding_of(mesh, "auto", program)))
    inputs = program.example_inputs
    assert inputs is not None, "a module is captured with its inputs"
    assert compiled.sharding is not None, "it is for a mesh"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        compiled.save(folder / "model.lk")
        command = [sys.executable, "-m", "lowerkit", "run", str(folder / "model.lk"), "-o", str(folder / "out")]
        command += ["--nproc", str(compiled.sharding.ranks), "--threads", "1"]
        for spec, array in zip(compiled.parts.program.signature.inputs, inputs, strict=True):
            np.save(folder / f"{spec.name}.npy", array)
            command += ["--input", f"{spec.name}=@{folder}/{spec.name}.npy"]
        subprocess.run(command, check=True, timeout=_DEADLINE, cwd=ROOT, stdout=subprocess.DEVNULL)
        simulated = compiled.runner.run(*inputs)
        names = [spec.name for spec in compiled.parts.program.signature.outputs]
        found = [np.load(folder / "out" / f"{name}.npy") for name in names]
    pairs = zip(simulated, found, strict=True)
    return max(float(np.abs(one - other).max() / np.abs(one).max()) for one, other in pairs)


def main() -> int:
    """Prints a line a cell, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--meshes", default=";".join(MESHES))
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--per-op", action="store_true")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cells: list[Cell] = []
    names = ARCHITECTURES if arguments.models == "architectures" else arguments.models.split(",")
    for name in names:
        for mesh in arguments.meshes.split(";"):
            cell = run_cell(name, mesh, processes=arguments.processes, per_op=arguments.per_op)
            cells.append(cell)
            print(
                f"{name:10} {mesh:10} {'ok' if cell.passed else 'FAILS'}  {cell.said} ({cell.seconds:.0f} s)",
                flush=True,
            )
    failed = [cell for cell in cells if not cell.passed]
    print(f"{len(cells)} cells, {len(failed)} failed")
    if arguments.markdown is not None:
        rows = [f"| {cell.model} | {cell.mesh} | {'ok' if cell.passed else 'FAILS'} | {cell.said} |" for cell in cells]
        option = " --models architectures" if names is ARCHITECTURES else ""
        option += " --processes" if arguments.processes else ""
        option += " --per-op" if arguments.per_op else ""
        head = f"# Models under meshes\n\n`python tools/mesh_matrix.py{option}`, all small:\n"
        table = ["", "| model | mesh | gate A | plan |", "|---|---|---|---|", *rows]
        arguments.markdown.write_text(head + "\n".join(table) + "\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
