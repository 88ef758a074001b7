"""ONNX products, pools and normalizations compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import assert_close, by_onnxruntime, normal, one_node, ours


@pytest.mark.parametrize("p", [1, 2])
def test_normalization_of_zeros_gives_zeros(p: int) -> None:
    x = normal(3, 4)
    x[1] = 0
    model = one_node("LpNormalization", {"x": x}, p=p, axis=1, opset=22)
    norm = np.linalg.norm(x.astype(np.float64), p, 1, keepdims=True)
    assert_close(ours(model, [x]), [np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(np.float32)])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    x = normal(1, 2, 7, 6)
    model = one_node("LpPool", {"x": x}, p=p, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], opset=18)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 1e-5)


def test_einsum_with_operands_of_rank_0() -> None:
    x, s = normal(3, 4), np.array(1.5, np.float32)
    model = one_node("Einsum", {"x": x, "s": s}, equation="ij,->ji")
    assert_close(ours(model, [x, s]), [x.T * s], 0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("layout", ["tensor", "axis", "blocks"])
def test_quantize_and_dequantize(layout: str, dtype: type[np.integer[Any]]) -> None:
    shape = {"tensor": (), "axis": (6,), "blocks": (2, 6, 2)}[layout]
    fields: dict[str, Any] = {"tensor": {}, "axis": {"axis": 1}, "blocks": {"axis": 2, "block_size": 3}}[layout]
    scale = RANDOM.uniform(0.01, 0.1, shape).astype(np.float32)
    info = np.iinfo(dtype)
    zero = RANDOM.integers(info.min // 2, info.max // 2, shape).astype(dtype)
    x = (normal(2, 6, 5) * 1000).astype(np.float32)
    x.reshape(-1)[:3] = [np.inf, -np.inf, 0]
    constants = {"scale": scale, "zero": zero}
    model = one_node("QuantizeLinear", {"x": x}, constants, **fields)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0)
    q = RANDOM.integers(info.min, info.max, (2, 6, 5)).astype(dtype)
    model = one_node("DequantizeLinear", {"q": q}, constants, **fields)
    assert_close(ours(model, [q]), by_onnxruntime(model, [q]), 0)


def test_quantization_rounds_half_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    constants = {"scale": np.array(1, np.float32), "zero": np.array(3, np.int8)}
    assert ours(one_node("QuantizeLinear", {"x": x}, constants), [x])[0].tolist() == [3, 5, 5, 3, 1, 1]


def test_conv_integer() -> None:
    x, w = (RANDOM.integers(0, 256, shape).astype(np.uint8) for shape in ((1, 2, 5, 5), (3, 2, 2, 2)))
    constants = {"xz": np.array(7, np.uint8), "wz": np.array(200, np.uint8)}
    model = one_node("ConvInteger", {"x": x, "w": w}, constants, pads=[1, 0, 1, 0], opset=10)
    assert_close(ours(model, [x, w]), by_onnxruntime(model, [x, w]), 0)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_without_addend(transposed: int) -> None:
    left, right = normal(3, 3), normal(3, 3)
    model = one_node("Gemm", {"a": left, "b": right}, alpha=2.5, transA=transposed, transB=1 - transposed)
    assert_close(ours(model, [left, right]), by_onnxruntime(model, [left, right]))


def test_gemm_without_addend_where_its_factor_is_zero() -> None:
    left, right, addend = normal(3, 4), normal(4, 2), np.array([np.nan, np.inf], np.float32)
    model = one_node("Gemm", {"a": left, "b": right}, {"c": addend}, alpha=2.5, beta=0.0)
    assert_close(ours(model, [left, right]), by_onnxruntime(model, [left, right]))


POOLS = {
    "over_the_end": ([3, 2], [3, 3], [0, 0, 0, 0]),
    "far_over_the_end": ([4, 3], [5, 4], [0, 1, 0, 1]),
    "a_window_in_the_padding": ([3, 3], [3, 3], [1, 1, 1, 1]),
    "uneven": ([3, 3], [2, 3], [1, 0, 0, 2]),
    "even_with_the_reach": ([3, 2], [2, 2], [1, 0, 0, 0]),
    "padding_too_wide": ([2, 2], [2, 2], [0, 0, 1, 1]),
}


@pytest.mark.parametrize("rounds_up", [0, 1])
@pytest.mark.parametrize("pads", [[1, 0, 0, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("include", [0, 1])
def test_dilated_means(include: int, pads: list[int], rounds_up: int) -> None:
    x = normal(2, 3, 7, 8)
    model = one_node("AveragePool", {"x": x}, opset=22, kernel_shape=[3, 2], strides=[2, 3], dilations=[2, 3],
                     pads=pads, count_include_pad=include, ceil_mode=rounds_up)  # fmt: skip
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]))


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize(
    "attributes", [{}, {"count_include_pad": 1}, {"largest": True}], ids=["within", "all", "largest"]
)
@pytest.mark.parametrize("name", POOLS)
def test_pools_that_round_up(name: str, attributes: dict[str, Any], opset: int) -> None:
    kernel, strides, pads = POOLS[name]
    x = normal(2, 3, 7, 8)
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": 1}
    if "largest" in attributes:
        model = one_node("MaxPool", {"x": x}, opset=opset, **given)
    else:
        model = one_node("AveragePool", {"x": x}, opset=opset, **given, **attributes)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]))


@pytest.mark.parametrize("size", [2, 4])
def test_local_response_over_an_even_number_of_channels(size: int) -> None:
    """ONNX Runtime takes odd numbers alone, and ONNX's evaluator is right for the first channel of some: by formula."""
    x = normal(2, 5, 3, 2)
    model = one_node("LRN", {"x": x}, size=size, alpha=0.5, bias=1.5)
    wide = np.pad(x.astype(np.float64) ** 2, [(0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)])
    total = sum(wide[:, first : first + 5] for first in range(size))
    assert_close(ours(model, [x]), [(x / (1.5 + 0.5 / size * total) ** 0.75).astype(np.float32)])


@pytest.mark.parametrize("outputs", [1, 3])
def test_layer_normalization_of_float64(outputs: int) -> None:
    x, scale = normal(3, 4).astype(np.float64), normal(4).astype(np.float64)
    model = one_node("LayerNormalization", {"x": x, "scale": scale}, outputs=["y", "mean", "deviation"][:outputs])
    (y, *statistics) = ours(model, [x, scale])
    centred = x - x.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-5)) * scale
    np.testing.assert_allclose(y, wanted, rtol=1e-13)
    assert [array.dtype for array in statistics] == [np.dtype(np.float32)] * (outputs - 1)


@pytest.mark.parametrize("padding", [{}, {"pads": [0, 1, 1, 0]}, {"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"},
                                     {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}])  # fmt: skip
def test_places_of_a_max_pool_count_through_the_whole_tensor(padding: dict[str, Any]) -> None:
    x = RANDOM.permutation(2 * 3 * 7 * 5).reshape(2, 3, 7, 5).astype(np.float32)
    model = one_node("MaxPool", {"x": x}, outputs=["y", "places"], kernel_shape=[2, 2], strides=[2, 1], **padding)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)
