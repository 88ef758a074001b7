"""GPT-2 and Llama as decoders: a cache of keys and values that the model keeps between calls.

``forward(input_ids, cache_position)`` takes tokens and their positions and returns logits; the cache is module buffers
(transformers' own wrapper around its StaticCache). Factories for the command line:
``lowerkit compile tools/bench/decoders.py:llama -o llama.lk``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import Dim

NAMES = ("gpt2", "llama")
FULL_CACHE, TINY_CACHE = 256, 80


def language_model(name: str, *, tiny: bool) -> Any:
    """Returns the transformers model alone, without a cache of its own; seeded random weights."""
    models = _models()
    wrapper, _ = models.tiny(name) if tiny else models.full(name)
    return wrapper.model


def decoder(name: str, *, tiny: bool = False, cache: int | None = None) -> nn.Module:
    """Returns a model with a cache of ``cache`` tokens, batch 1."""
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    length = cache or (TINY_CACHE if tiny else FULL_CACHE)
    model = language_model(name, tiny=tiny)
    model.generation_config = GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config={"batch_size": 1, "max_cache_len": length}
    )
    return TorchExportableModuleWithStaticCache(model).eval().requires_grad_(False)


def example(tokens: int = 1) -> dict[str, torch.Tensor]:
    """Returns keyword inputs: ``tokens`` tokens at the first positions."""
    return {"input_ids": torch.ones(1, tokens, dtype=torch.int64), "cache_position": torch.arange(tokens)}


def dynamic_shapes(most_tokens: int) -> dict[str, Any]:
    """Returns dynamic shapes for 1 to ``most_tokens`` tokens a call: one artifact for the prompt and for each token."""
    tokens = Dim("tokens", min=1, max=most_tokens)
    return {"input_ids": {1: tokens}, "cache_position": {0: tokens}}


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return decoder("gpt2"), example()


def llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return decoder("llama"), example()


def _models() -> ModuleType:
    """The module beside this file: tools/ is no package."""
    name = "lowerkit_benchmark_models"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("models.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
