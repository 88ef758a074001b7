"""Weights that an artifact holds in more bytes than the model: said with both sizes, unasked."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import lowerkit
from tests.support.suite.randomness import RANDOM


class Int8Weights(nn.Module):
    """A linear layer of ``features`` whose weight is stored as 8-bit integers with a scale for each row."""

    weight: Tensor
    scale: Tensor

    def __init__(self, features: int, dtype: torch.dtype = torch.int8) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 100, (features, features), dtype=dtype))
        self.register_buffer("scale", torch.rand(features, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(torch.float32) * self.scale).t()


def _onnx_model() -> onnx.ModelProto:
    weight = numpy_helper.from_array(RANDOM.integers(-100, 100, (8, 8)).astype(np.int8), "w")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "s")
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["f"]), helper.make_node("MatMul", ["x", "f"], ["y"])]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8])] for name in "xy")
    graph = helper.make_graph(nodes, "weights", inputs, outputs, [weight, scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_both_sizes_are_said(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    compiled = lowerkit.compile(nn.Sequential(Int8Weights(8, dtype), Int8Weights(8, dtype)), (torch.rand(2, 8),))
    (record,) = [record for record in caplog.records if record.name == "lowerkit"]
    assert record.levelno == logging.WARNING and record.message in compiled.remarks
    name = "i8" if dtype == torch.int8 else "u8"
    assert f"the model has 128 bytes of {name}, the artifact 0; all weights take 512 bytes" in record.message
    assert "in the artifact and 192 in the model" in record.message


def test_weights_of_onnx(caplog: pytest.LogCaptureFixture) -> None:
    lowerkit.compile(_onnx_model())
    assert "the model has 64 bytes of i8, the artifact 0; all weights take 256 bytes in the artifact" in caplog.text


def test_a_program_of_the_cache_says_so_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.export.save(torch.export.export(Int8Weights(8), (torch.rand(2, 8),)), tmp_path / "int8.pt2")
    for cached in (False, True):
        caplog.clear()
        compiled = lowerkit.compile(tmp_path / "int8.pt2")
        assert "the model has 64 bytes of i8, the artifact 0" in caplog.text
        assert any("taken from the program cache" in remark for remark in compiled.remarks) == cached


def test_nothing_is_said_of_what_did_not_grow(caplog: pytest.LogCaptureFixture) -> None:
    class Indices(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randint(0, 4, (8,), dtype=torch.uint8))
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x), x[:, self.table.long()]

    lowerkit.compile(Indices().eval(), (torch.rand(2, 8),))
    assert "8-bit" not in caplog.text
