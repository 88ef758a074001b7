"""Loads the benchmark's scripts by path (tools/ is no package), and captures their small models once in a process.

Capturing a model of transformers takes longer than compiling it. Tests of what comes after the capture therefore share
one captured program, of which each takes a copy.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from lowerkit.capture.capture import capture
from lowerkit.program.program import Program

ROOT = Path(__file__).resolve().parents[2]


@cache
def benchmark_models() -> ModuleType:
    """Returns the module tools/bench/models.py."""
    return _load("models")


@cache
def decoders() -> ModuleType:
    """Returns the module tools/bench/decoders.py."""
    return _load("decoders")


@cache
def light_models() -> ModuleType:
    """Returns the module tools/bench/light_models.py."""
    return _load("light_models")


@cache
def sentence_embeddings() -> ModuleType:
    """Returns the module tools/bench/sentence_embeddings.py."""
    return _load("sentence_embeddings")


def fresh(program: Program) -> Program:
    """Returns a copy to be lowered apart from all others, with a module and a weight store of its own."""
    return replace(program.copy(), weights=program.weights.fork())


def tiny_program(name: str, dtype: torch.dtype = torch.float32) -> Program:
    """Returns a copy of the captured program of a small model, whose floats are of ``dtype``."""
    return fresh(_tiny(name, dtype))


def decoder_program(name: str, tokens: int = 1, *, any_number: bool = False) -> Program:
    """Returns a copy of the captured program of a small decoder with its cache.

    It takes ``tokens`` tokens at a time, or with ``any_number`` as many as there are.
    """
    return fresh(_decoder(name, tokens, any_number))


def symbolic_program(name: str) -> Program:
    """Returns a copy of the captured program of a small model of any batch, and of token ids of any length.

    Batches are of 1 to 8, lengths of 2 to 32; images of ResNet-50 have any height and width from 32 to 128.
    """
    return fresh(_symbolic(name))


@cache
def _tiny(name: str, dtype: torch.dtype) -> Program:
    module, inputs = benchmark_models().tiny(name)
    return capture(module.to(dtype), tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs))


@cache
def _symbolic(name: str) -> Program:
    module, (value,) = benchmark_models().tiny(name)
    dims = {0: torch.export.Dim("batch", min=1, max=8)}
    if name == "resnet50":
        dims |= {2: torch.export.Dim("height", min=32, max=128), 3: torch.export.Dim("width", min=32, max=128)}
    if not value.is_floating_point():
        dims[1] = torch.export.Dim("length", min=2, max=32)
    return capture(module, (value,), dynamic_shapes=(dims,))


@cache
def _decoder(name: str, tokens: int, any_number: bool) -> Program:
    tools = decoders()
    shapes = tools.dynamic_shapes(tools.TINY_CACHE - 1) if any_number else None
    return capture(tools.decoder(name, tiny=True), (), kwargs=tools.example(tokens), dynamic_shapes=shapes)


def _load(stem: str) -> ModuleType:
    path = ROOT / f"tools/bench/{stem}.py"
    spec = importlib.util.spec_from_file_location(f"lowerkit_benchmark_{stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
