"""ONNX nodes of signals and images compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import assert_close, by_onnxruntime, by_reference, normal, one_node, ours


@pytest.mark.parametrize("length", [None, 4, 7, 9])
@pytest.mark.parametrize(("kind", "parts"), [("forward", 1), ("forward", 2), ("onesided", 1), ("inverse", 2)])
def test_dft(kind: str, parts: int, length: int | None) -> None:
    x = normal(2, 7, 3, parts)
    constants = {"axis": np.array(1)} if length is None else {"length": np.array(length), "axis": np.array(1)}
    order = ["x", "" if length is None else "length", "axis"]
    flags: dict[str, Any] = {"onesided": int(kind == "onesided"), "inverse": int(kind == "inverse")}
    model = one_node("DFT", {"x": x}, constants, order=order, **flags)
    assert_close(ours(model, [x]), by_reference(model, [x]))


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int) -> None:
    x, window = normal(2, 23, 1), normal(8)
    model = one_node(
        "STFT",
        {"x": x},
        {"step": np.array(3), "window": window, "length": np.array(8)},
        onesided=onesided,
    )
    assert_close(ours(model, [x]), by_reference(model, [x]))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(mode: str, padding: str, align_corners: int) -> None:
    x, grid = normal(2, 3, 4, 5), RANDOM.uniform(-1.6, 1.6, (2, 3, 2, 2)).astype(np.float32)
    model = one_node("GridSample", {"x": x, "grid": grid}, mode=mode, padding_mode=padding, align_corners=align_corners)
    # ONNX's evaluator brings the place of a cubic back to the border, ONNX Runtime and PyTorch each of its taps.
    judge = by_onnxruntime if (mode, padding) == ("cubic", "border") else by_reference
    assert_close(ours(model, [x, grid]), judge(model, [x, grid]), 1e-5)


def test_grid_sample_of_volumes() -> None:
    x, grid = normal(1, 2, 3, 4, 2), RANDOM.uniform(-1.3, 1.3, (1, 2, 2, 3, 3)).astype(np.float32)
    model = one_node("GridSample", {"x": x, "grid": grid}, mode="linear")
    assert_close(ours(model, [x, grid]), by_reference(model, [x, grid]), 1e-5)


def test_deform_conv() -> None:
    x, weight = normal(1, 4, 5, 6), normal(6, 2, 2, 3)
    offset, mask = normal(1, 2 * 6 * 2, 3, 4), normal(1, 2 * 6, 3, 4)
    inputs = {"x": x, "w": weight, "offset": offset, "b": normal(6), "mask": mask}
    fields: dict[str, Any] = {
        "group": 2,
        "offset_group": 2,
        "strides": [2, 1],
        "pads": [1, 0, 0, 1],
        "dilations": [1, 1],
    }
    inputs["offset"], inputs["mask"] = normal(1, 24, 3, 5), normal(1, 12, 3, 5)
    model = one_node("DeformConv", inputs, opset=19, **fields)
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())), 1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_cubic_sampling_brings_back_each_tap(padding: str, align_corners: int) -> None:
    x, grid = normal(2, 1, 2, 3), (RANDOM.random((2, 4, 5, 2)) * 5 - 2.5).astype(np.float32)
    model = one_node("GridSample", {"x": x, "grid": grid}, opset=17, mode="bicubic", padding_mode=padding,
                     align_corners=align_corners)  # fmt: skip
    assert_close(ours(model, [x, grid]), by_onnxruntime(model, [x, grid]))
