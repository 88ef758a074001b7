"""fold-batch-norm: into the layer before it, or to a multiplication and an addition per channel; what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.simplify.fold_batch_norm import FoldBatchNorm
from lowerkit.pipeline import run_stages

Check = Callable[..., PassContext]


class Stack(nn.Module):
    """Layers one after the other, with batch norms that have seen data."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def settled(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = Stack(*layers)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.affine:
            nn.init.normal_(module.weight, 1.0, 0.5)
            nn.init.normal_(module.bias)
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(16, *shape[1:]) * 2 + 1)
    return model.eval(), torch.randn(shape)


FOLDED = {
    "convolution without bias": ([nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)], (2, 3, 9, 9)),
    "convolution with bias": ([nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)], (2, 4, 9, 9)),
    "convolution in one dimension": ([nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8, affine=False)], (2, 3, 9)),
    "transposed convolution": ([nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)], (2, 4, 5, 5)),
    "linear layer": ([nn.Linear(6, 5), nn.BatchNorm1d(5)], (4, 6)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folds_into(name: str) -> None:
    layers, shape = FOLDED[name]
    model, x = settled(layers, shape)
    program = capture_module(model, (x,))
    context = PassContext(weights=program.weights)
    assert FoldBatchNorm().run(program.module, context)
    text = str(program.module)
    assert "batch_norm" not in text.replace("batch_norm.", "")
    assert "aten.mul" not in text
    assert ".folded" in text
    _compare(program, context, model, x)


def test_without_a_layer_before_it() -> None:
    model, x = settled([nn.ReLU(), nn.BatchNorm2d(3)], (2, 3, 5, 5))
    program = capture_module(model, (x,))
    context = PassContext(weights=program.weights)
    assert FoldBatchNorm().run(program.module, context)
    text = str(program.module)
    assert "aten.mul.Tensor" in text
    assert "aten.add.Tensor" in text
    _compare(program, context, model, x)


class Fork(nn.Module):
    """The convolution's result is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y


def test_a_convolution_with_another_reader_is_not_folded_into() -> None:
    model, x = Fork().eval(), torch.randn(2, 3, 5, 5)
    program = capture_module(model, (x,))
    context = PassContext(weights=program.weights)
    FoldBatchNorm().run(program.module, context)
    assert 'symbol = "conv.weight"' in str(program.module)
    _compare(program, context, model, x)


def test_low_precision_rounds_once() -> None:
    """bf16 batch norm alone: computed in f32 as eager does, not with two roundings."""
    model, x = settled([nn.BatchNorm2d(3)], (2, 3, 5, 5))
    model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    program = capture_module(model, (x,))
    FoldBatchNorm().run(program.module, PassContext(weights=program.weights))
    text = str(program.module)
    assert "aten.mul.Tensor" in text
    assert (
        "[2,3,5,5],f32> -> !torch.vtensor<[2,3,5,5],bf16>" in text.replace(", !torch.none", "")
        or "aten.to.dtype" in text
    )
    wide = next(line for line in text.splitlines() if "aten.mul.Tensor" in line)
    assert wide.rstrip().endswith("f32>")


TRAINING = """
func.func @main(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3xf32>
  %t = torch_c.from_builtin_tensor %w : tensor<3xf32> -> !torch.vtensor<[3],f32>
  %on = torch.constant.bool true
  %m = torch.constant.float 1.000000e-01
  %eps = torch.constant.float 1.000000e-05
  %r = torch.aten.batch_norm %x, %t, %t, %t, %t, %on, %m, %eps, %on : !torch.vtensor<[2,3],f32>,
    !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32>,
    !torch.bool, !torch.float, !torch.float, !torch.bool -> !torch.vtensor<[2,3],f32>
  return %r : !torch.vtensor<[2,3],f32>
}
"""


def test_training_mode_stays_with_a_remark(check: Check) -> None:
    context = check(TRAINING, "fold-batch-norm", "// CHECK: torch.aten.batch_norm", {"w": np.ones(3, np.float32)})
    assert len(context.remarks) == 1
    assert "statistics of the batch" in context.remarks[0]


def test_computed_statistics_stay_with_a_remark(check: Check) -> None:
    text = TRAINING.replace("bool true", "bool false").replace(
        "%x: !torch.vtensor<[2,3],f32>", "%x: !torch.vtensor<[2,3],f32>, %v: !torch.vtensor<[3],f32>"
    )
    text = text.replace("%t, %t, %t, %t, %on", "%t, %t, %t, %v, %on")
    context = check(text, "fold-batch-norm", "// CHECK: torch.aten.batch_norm", {"w": np.ones(3, np.float32)})
    assert "its variance is computed at run time" in context.remarks[0]


def _compare(program: Any, context: PassContext, model: nn.Module, x: torch.Tensor) -> None:
    """The folded module agrees with eager in float64 as closely as eager in float32 does, to a small factor."""
    run_stages(program, "raised", context)
    found = interpret(program.module, [x.numpy()], program.weights.get)[0]
    with torch.no_grad():
        exact = model.double()(x.double()).numpy()
    model.float()
    assert np.abs(exact).max() > 0.1
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)
