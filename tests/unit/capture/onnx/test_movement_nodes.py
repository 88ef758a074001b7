"""ONNX nodes that move elements compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.capture.onnx.one_node_models import assert_close, by_onnxruntime, by_reference, normal, one_node, ours


def test_slices_backward() -> None:
    x = normal(7, 5, 4)
    constants = {
        "starts": np.array([5, -1, 10]), "ends": np.array([-1000, 1, 0]), "axes": np.array([0, -1, 1]),
        "steps": np.array([-2, -1, -3]),
    }  # fmt: skip
    model = one_node("Slice", {"x": x}, constants)
    assert_close(ours(model, [x]), [x[5::-2, 10:0:-3, -1:1:-1]], 0)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    x = normal(2, 3, 4, 6)
    model = one_node("SpaceToDepth", {"x": x}, opset=28, blocksize=2, mode=mode)
    model.opset_import[0].version = 28
    assert_close(ours(model, [x]), by_reference(model, [x]), 0)


def test_col2im() -> None:
    x = normal(2, 18, 3)
    constants = {"image": np.array([5, 5]), "block": np.array([2, 3])}
    model = one_node("Col2Im", {"x": x}, constants, strides=[2, 1], pads=[1, 0, 0, 0], dilations=[1, 2], opset=18)
    found = ours(one_node("Col2Im", {"x": normal(2, 18, 12)}, constants, opset=18), [y := normal(2, 18, 12)])
    assert_close(found, by_reference(one_node("Col2Im", {"x": y}, constants, opset=18), [y]))
    assert_close(ours(model, [x]), by_reference(model, [x]))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache, update = normal(2, 3, 6, 4), normal(2, 3, 2, 4)
    at = np.array([1, 5 if mode == "circular" else 4])
    inputs = {"cache": cache, "update": update, "at": at}
    model = one_node("TensorScatter", inputs, opset=24, mode=mode)
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())), 0)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("shape", "size"), [((1, 4, 1, 2), 2), ((2, 12, 2, 3), 2), ((1, 18, 3, 1), 3)])
def test_depth_to_space(mode: str, shape: tuple[int, ...], size: int) -> None:
    """More channels than blocks, and fewer."""
    x = normal(*shape)
    model = one_node("DepthToSpace", {"x": x}, blocksize=size, mode=mode)
    assert_close(ours(model, [x]), by_reference(model, [x]))


@pytest.mark.parametrize(("start", "end"), [(-100, -100), (-7, -9), (100, -100), (-1, 0), (1, -9), (-2, -2), (0, 2)])
@pytest.mark.parametrize("step", [-1, -2])
@pytest.mark.parametrize("extent", [1, 3, 5])
def test_slices_backward_from_beyond_the_ends(extent: int, step: int, start: int, end: int) -> None:
    x = normal(2, extent)
    bounds = {name: np.array([value]) for name, value in (("s", start), ("e", end), ("a", 1), ("t", step))}
    model = one_node("Slice", {"x": x}, bounds)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)
