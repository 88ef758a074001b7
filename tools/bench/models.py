"""The six models that every figure of this project is measured on, built offline from transformers' configurations.

Each is a factory for the command line: ``lowerkit compile tools/bench/models.py:resnet50``. Weights are random and
seeded. Two things make a comparison on random weights worth something, and both are done here:

* batch norms take their statistics from random batches (train mode, cumulative average); with the statistics of the
  default initialisation MobileNetV2's logits are 1e-22;
* :func:`input_dependence` measures how much the outputs change with the input, and :func:`require_input_dependence`
  refuses a model whose outputs change by less than 0.2 of their rms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = tuple[torch.Tensor, ...]
SEED = 20260401
LEAST_DEPENDENCE = 0.2
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Logits(nn.Module):
    """Calls a transformers model and returns its logits, or its last hidden state, as a plain tensor."""

    def __init__(self, model: nn.Module, argument: str, output: str) -> None:
        super().__init__()
        self.model = model
        self.argument = argument
        self.output = output


class ImageLogits(Logits):
    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(pixel_values=pixel_values), self.output)


class TokenLogits(Logits):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(input_ids=input_ids), self.output)


class DecoderLogits(Logits):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(input_ids=input_ids, use_cache=False), self.output)


@dataclass(frozen=True)
class _Recipe:
    build: Callable[[bool], nn.Module]
    full_shape: tuple[int, ...]
    tiny_shape: tuple[int, ...]
    vocabulary: tuple[int, int] | None
    """Token ids below (full, tiny); None for images."""


def _with_labels(config: Any, tiny: bool) -> Any:
    config.num_labels = 10 if tiny else 1000
    return config


def _resnet50(tiny: bool) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    if tiny:
        config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2])
    else:
        config = ResNetConfig()
    return ImageLogits(ResNetForImageClassification(_with_labels(config, tiny)), "pixel_values", "logits")


def _mobilenet_v2(tiny: bool) -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    if tiny:
        config = MobileNetV2Config(depth_multiplier=0.25, image_size=64)
    else:
        config = MobileNetV2Config()
    return ImageLogits(MobileNetV2ForImageClassification(_with_labels(config, tiny)), "pixel_values", "logits")


def _bert_base(tiny: bool) -> nn.Module:
    from transformers import BertConfig, BertModel

    if tiny:
        config = BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    else:
        config = BertConfig()
    return TokenLogits(BertModel(config, add_pooling_layer=False), "input_ids", "last_hidden_state")


def _vit_b16(tiny: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    if tiny:
        config = ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        )
    else:
        config = ViTConfig()
    return ImageLogits(ViTForImageClassification(_with_labels(config, tiny)), "pixel_values", "logits")


def _gpt2(tiny: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    if tiny:
        config = GPT2Config(
            vocab_size=100, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
        )
    else:
        config = GPT2Config()
    return DecoderLogits(GPT2LMHeadModel(config), "input_ids", "logits")


def _llama(tiny: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    if tiny:
        config = LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    else:
        config = LlamaConfig(
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=4,
            max_position_embeddings=512,
        )
    return DecoderLogits(LlamaForCausalLM(config), "input_ids", "logits")


_RECIPES: dict[str, _Recipe] = {
    "resnet50": _Recipe(_resnet50, (1, 3, 224, 224), (2, 3, 32, 32), None),
    "mobilenet_v2": _Recipe(_mobilenet_v2, (1, 3, 224, 224), (2, 3, 64, 64), None),
    "bert_base": _Recipe(_bert_base, (1, 128), (2, 12), (30522, 100)),
    "vit_b16": _Recipe(_vit_b16, (1, 3, 224, 224), (2, 3, 32, 32), None),
    "gpt2": _Recipe(_gpt2, (1, 64), (2, 12), (50257, 100)),
    "llama": _Recipe(_llama, (1, 64), (2, 12), (32000, 100)),
}

NAMES: tuple[str, ...] = tuple(_RECIPES)


def full(name: str) -> tuple[nn.Module, Inputs]:
    """Returns the model at its published size, in eval mode, with one set of example inputs."""
    return _make(name, tiny=False)


def tiny(name: str) -> tuple[nn.Module, Inputs]:
    """Returns the same architecture small enough for a test: about a second from capture to result."""
    return _make(name, tiny=True)


def example_inputs(name: str, *, tiny: bool = False, seed: int = SEED) -> Inputs:
    """Returns random inputs: normal images, uniform token ids."""
    recipe = _RECIPES[name]
    shape = recipe.tiny_shape if tiny else recipe.full_shape
    generator = torch.Generator().manual_seed(seed)
    if recipe.vocabulary is None:
        return (torch.randn(shape, generator=generator),)
    return (torch.randint(recipe.vocabulary[tiny], shape, generator=generator),)


def input_dependence(model: Callable[..., Any], first: Inputs, second: Inputs) -> float:
    """Returns rms(model(first) - model(second)) / rms(model(first))."""
    with torch.no_grad():
        one, two = model(*first).double(), model(*second).double()
    return float((one - two).square().mean().sqrt() / one.square().mean().sqrt())


def require_input_dependence(model: Callable[..., Any], first: Inputs, second: Inputs) -> float:
    """Returns :func:`input_dependence`.

    Raises:
        ValueError: it is below 0.2: a comparison of this model's outputs says nothing.
    """
    found = input_dependence(model, first, second)
    if not found >= LEAST_DEPENDENCE:
        raise ValueError(f"the outputs change by {found:.3g} of their rms with the input; {LEAST_DEPENDENCE} is needed")
    return found


def settle_batch_norms(model: nn.Module, batches: list[Inputs]) -> None:
    """Gives every batch norm the mean and variance of ``batches`` (cumulative average); the model ends in eval."""
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum
    model.eval()


def _make(name: str, *, tiny: bool) -> tuple[nn.Module, Inputs]:
    recipe = _RECIPES[name]
    state = torch.random.get_rng_state()
    torch.manual_seed(SEED)
    try:
        model = recipe.build(tiny).eval()
        if any(isinstance(module, BATCH_NORMS) for module in model.modules()):
            batch = 8 if tiny else 4
            shape = (batch, *(recipe.tiny_shape if tiny else recipe.full_shape)[1:])
            settle_batch_norms(model, [(torch.randn(shape),) for _ in range(2)])
    finally:
        torch.random.set_rng_state(state)
    model.requires_grad_(False)
    return model, example_inputs(name, tiny=tiny)


def resnet50() -> tuple[nn.Module, Inputs]:
    return full("resnet50")


def mobilenet_v2() -> tuple[nn.Module, Inputs]:
    return full("mobilenet_v2")


def bert_base() -> tuple[nn.Module, Inputs]:
    return full("bert_base")


def vit_b16() -> tuple[nn.Module, Inputs]:
    return full("vit_b16")


def gpt2() -> tuple[nn.Module, Inputs]:
    return full("gpt2")


def llama() -> tuple[nn.Module, Inputs]:
    return full("llama")
