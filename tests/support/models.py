"""Loads the benchmark's scripts by path: tools/ is no package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

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


def _load(stem: str) -> ModuleType:
    path = ROOT / f"tools/bench/{stem}.py"
    spec = importlib.util.spec_from_file_location(f"lowerkit_benchmark_{stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
