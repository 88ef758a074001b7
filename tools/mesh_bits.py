"""Small models under meshes with `--invariant`, as `--shard auto` splits them: do all meshes give the same bits?

    python tools/mesh_bits.py [--models gpt2,llama] [--meshes "tp=1;tp=2;dp=2,tp=2"]
    python tools/mesh_bits.py --models architectures --meshes "tp=1;tp=2;tp=4;sp=2;tp=2,pp=2"

A cell compiles a model for a mesh, proves it again, runs all ranks simulated, whose outputs must be equal to the bit,
and compares these with what the first mesh that is not refused gave. What is refused is so by name (LK4007).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lowerkit.capture.capture import capture  # noqa: E402
from lowerkit.compiler import CompileOptions, compile_program  # noqa: E402
from lowerkit.errors import UnsupportedError  # noqa: E402
from lowerkit.spmd.certificate.certificate import prove_again  # noqa: E402
from lowerkit.spmd.sharding import sharding_of  # noqa: E402
from tests.support.mesh.architectures import ARCHITECTURES, architecture  # noqa: E402
from tests.support.mesh.experts import mixture  # noqa: E402
from tests.support.models import benchmark_models  # noqa: E402

MODELS = ("gpt2", "llama", "bert_base", "vit_b16", "resnet50", "mobilenet_v2", "mixture")
MESHES = (
    *("tp=1", "tp=2", "tp=4", "tp=8", "dp=2", "dp=4", "sp=2", "sp=4", "ep=2", "ep=4", "pp=2"),
    *("tp=2,dp=2", "dp=2,tp=2", "dp=2,tp=4", "tp=2,pp=2", "sp=2,tp=2", "tp=2,sp=2", "ep=2,tp=2", "dp=2,ep=2"),
    *("dp=2,pp=2", "dp=2,sp=2", "tp=2,tp2=2", "dp=2,tp=2,pp=2"),
)


def model_of(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns a small model, and inputs of which each of four elements of the batch is another one, if it takes one."""
    if name in ARCHITECTURES:
        return architecture(name)
    if name == "mixture":
        return mixture()[0], (torch.randn(8, 16),)
    module, (x, *_) = benchmark_models().tiny(name)
    return module, (torch.cat([x[:1].roll(step, -1) for step in range(4)]),)


def bits_of(module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: str) -> bytes:
    """Returns the bits of all outputs.

    Raises:
        UnsupportedError: LK4007, it cannot be split so, or not with one order of sums.
    """
    program = capture(module, inputs)
    made = compile_program(
        program, CompileOptions(golden=False, sharding=sharding_of(mesh, "auto", program, invariant=True))
    )
    prove_again(made.program.certificate)
    return b"".join(array.tobytes() for array in made.runner.run(*(each.numpy() for each in inputs)))


def main() -> int:
    """Prints a line a cell, and how many there are of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--meshes", default=";".join(MESHES))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    names = ARCHITECTURES if arguments.models == "architectures" else arguments.models.split(",")
    for name in names:
        torch.manual_seed(0)
        module, inputs = model_of(name)
        first: bytes | None = None
        for mesh in arguments.meshes.split(";"):
            started = time.perf_counter()
            said = ""
            try:
                bits = bits_of(module, inputs, mesh)
                first = bits if first is None else first
                verdict = "same" if bits == first else "DIFFERS"
            except UnsupportedError as error:
                verdict, said = "refused", error.message
            counts[verdict] += 1
            print(f"{name:12} {mesh:14} {verdict} {said} ({time.perf_counter() - started:.0f} s)", flush=True)
    total = sum(counts.values())
    print(f"{total} cells: {counts['same']} same, {counts['refused']} refused, {counts['DIFFERS']} differ")
    return bool(counts["DIFFERS"])


if __name__ == "__main__":
    sys.exit(main())
