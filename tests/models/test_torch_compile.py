"""``torch.compile(model, backend="lowerkit")`` on whole models: eager's numbers, one compilation for many sizes."""

from __future__ import annotations

import copy

import pytest
import torch

from lowerkit.parity.gates import judge_model
from tests.support.models import benchmark_models
from tests.support.torch_backend.beside_eager import compiled, programs

DEFAULT = ("resnet50", "llama")
"""The default tier runs one convolutional model and one language model; the nightly tier runs all six."""
OTHERS = ("mobilenet_v2", "bert_base", "vit_b16", "gpt2")


@pytest.mark.parametrize("name", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)])
def test_batches_after_the_second_compile_nothing(name: str) -> None:
    module, (example,) = benchmark_models().tiny(name)
    fast = compiled(module)
    with torch.no_grad():
        for batch in (2, 3, 5):
            shape = (batch, *example.shape[1:])
            x = torch.randn(shape) if example.is_floating_point() else torch.randint(0, 100, shape)
            actual, expected = fast(x), module(x)
            exact = copy.deepcopy(module).double()(x.double() if x.is_floating_point() else x)
            verdict = judge_model("f32", actual.numpy(), expected.numpy(), exact.numpy())
            assert verdict.passed, (batch, verdict.reason)
            assert actual.stride() == expected.stride()
            assert programs() == (1 if batch == 2 else 2)  # one program each: nothing is left to PyTorch
