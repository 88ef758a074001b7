"""Compiles what a card is to run into a folder: the six models, small, in f32 and bf16, and products to be timed.

python tools/gpu/prepare.py build/gpu_check [--quick]
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import bundle  # pyright: ignore[reportMissingImports]  (beside this file)
import models  # pyright: ignore[reportMissingImports]  (tools/bench)

from lowerkit.capture.capture import capture
from lowerkit.compiler import Compiled, CompileOptions, compile_program
from lowerkit.targets.cuda.model.launches import default_card, report_program

TARGET = "cuda:sm_90,cuda:sm_80"
LEVELS = ("sm_90", "sm_80")
MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Product(nn.Module):
    """A product of two inputs."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Attention(nn.Module):
    """Attention of three inputs."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Moves(nn.Module):
    """As many bytes as can be, for little arithmetic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def compiled(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Compiled:
    """Compiles a module for the levels and writes it."""
    made = compile_program(capture(module, inputs), CompileOptions(TARGET, golden=False))
    made.save(path)
    return made


def parity(name: str, dtype: str, folder: Path) -> Any:
    """Writes a model, its inputs, and its results in f64 and by eager."""
    module, inputs = models.tiny(name)
    kind = DTYPES[dtype]
    module = module.to(kind)
    inputs = tuple(each.to(kind) if each.is_floating_point() else each for each in inputs)
    stem = f"{name}_{dtype}"
    compiled(module, inputs, folder / f"{stem}.lk")
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    with torch.no_grad():
        eager, exact = module(*inputs).double().numpy(), copy.deepcopy(module).double()(*wide).numpy()
    arrays = {f"in{number}": stored(each) for number, each in enumerate(inputs)}
    np.savez_compressed(folder / f"{stem}.npz", eager=eager, exact=exact, **arrays)
    return bundle.Parity(stem, dtype, f"{stem}.lk", f"{stem}.npz")


def stored(tensor: torch.Tensor) -> Any:
    """Returns a tensor as an array that numpy can keep: bf16 as its bits."""
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def timing(name: str, module: nn.Module, shapes: list[list[int]], dtype: str, folder: Path) -> Any:
    """Writes a module to be timed, and what is predicted for it."""
    inputs = tuple(torch.zeros(shape, dtype=DTYPES[dtype]) for shape in shapes)
    made = compiled(module.eval(), inputs, folder / f"{name}.lk")
    program = made.parts.manifest.programs[0]
    (data,) = (code for code in made.parts.code.values() if code[:4] == b"lkcu")
    reports = {level: report_program(program, data, {}, default_card(level)) for level in LEVELS}
    first = next(iter(reports.values()))
    flops, moved = (sum(getattr(each, what) for each in first.launches) for what in ("flops", "bytes"))
    predicted = {level: report.predicted for level, report in reports.items()}
    return bundle.Timing(name, f"{name}.lk", shapes, dtype, flops, moved, predicted)


def timings(folder: Path, *, quick: bool) -> list[Any]:
    """Writes all that is timed."""
    found = [
        timing(f"product_{size}_{dtype}", Product(), [[size, size], [size, size]], dtype, folder)
        for dtype, sizes in (("bf16", (64,) if quick else (2048, 4096, 8192)), ("f32", () if quick else (4096,)))
        for size in sizes
    ]
    heads = [1, 2, 64, 64] if quick else [4, 16, 4096, 128]
    found.append(timing("attention_bf16", Attention(), [heads] * 3, "bf16", folder))
    found.append(timing("moves_bf16", Moves(), [[1 << (16 if quick else 28)]], "bf16", folder))
    if not quick:
        found.append(timing("decode_bf16", Product(), [[1, 8192], [8192, 8192]], "bf16", folder))
    return found


def prepare(folder: Path, *, quick: bool = False) -> None:
    """Fills a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("gpt2",) if quick else MODELS
    checks = [parity(name, dtype, folder) for name in names for dtype in DTYPES]
    described = bundle.Bundle(_tree(), list(LEVELS), checks, timings(folder, quick=quick))
    (folder / "bundle.json").write_bytes(msgspec.json.format(msgspec.json.encode(described)))


def _tree() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="one model and small sizes, for a rehearsal")
    arguments = parser.parse_args()
    prepare(arguments.folder, quick=arguments.quick)
