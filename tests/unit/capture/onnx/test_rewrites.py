"""ONNX ops that are written as simpler ones compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from lowerkit.errors import UnsupportedError
from tests.support.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, by_onnxruntime, by_reference, one_node, ours


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("op_type", RECURRENT)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("full", [False, True], ids=["bare", "full"])
def test_recurrent(op_type: str, direction: str, full: bool) -> None:
    steps, batch, width, hidden, gates = 5, 3, 4, 2, RECURRENT[op_type]
    directions = 2 if direction == "bidirectional" else 1
    inputs = {"x": normal(steps, batch, width)}
    constants = {
        "w": normal(directions, gates * hidden, width),
        "r": normal(directions, gates * hidden, hidden),
    }
    order = ["x", "w", "r"]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if full:
        constants["b"] = normal(directions, 2 * gates * hidden)
        inputs["lengths"] = np.array([5, 2, 4], np.int32)
        inputs["h"] = normal(directions, batch, hidden)
        order += ["b", "lengths", "h"]
        attributes["clip"] = 1.5
        if op_type == "LSTM":
            inputs["c"] = normal(directions, batch, hidden)
            constants["p"] = normal(directions, 3 * hidden)
            order += ["c", "p"]
        if op_type == "GRU":
            attributes["linear_before_reset"] = 1
    outputs = ["y", "last", *(["cell"] if op_type == "LSTM" else [])]
    model = one_node(op_type, inputs, constants, order=order, outputs=outputs, **attributes)
    assert_close(ours(model, list(inputs.values())), by_onnxruntime(model, list(inputs.values())))


@pytest.mark.parametrize("op_type", RECURRENT)
def test_recurrent_with_the_batch_first(op_type: str) -> None:
    gates = RECURRENT[op_type]
    inputs = {"x": normal(3, 2, 4)}
    constants = {"w": normal(1, gates * 5, 4), "r": normal(1, gates * 5, 5)}
    model = one_node(op_type, inputs, constants, outputs=["y", "last"], hidden_size=5, layout=1)
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())))


def test_activations_take_their_own_parameters() -> None:
    inputs = {"x": normal(3, 2, 4)}
    constants = {"w": normal(2, 5, 4), "r": normal(2, 5, 5)}
    for names in (["HardSigmoid", "Affine"], ["LeakyRelu", "ThresholdedRelu"], ["ScaledTanh", "Elu"]):
        fields: dict[str, Any] = {"activation_alpha": [0.3, 0.7], "activation_beta": [0.4, 0.6]}
        model = one_node(
            "RNN", inputs, constants, hidden_size=5, direction="bidirectional", activations=names, **fields
        )
        assert_close(ours(model, list(inputs.values())), by_onnxruntime(model, list(inputs.values())))


@pytest.mark.parametrize("length", [None, 4, 7, 9])
@pytest.mark.parametrize("parts", [1, 2], ids=["real", "complex"])
@pytest.mark.parametrize("kind", ["forward", "onesided", "inverse"])
def test_dft(kind: str, parts: int, length: int | None) -> None:
    if (kind == "onesided" and parts == 2) or (kind == "inverse" and parts == 1):
        pytest.skip("the standard does not have it")
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


@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumulative_products_and_integer_sums(axis: int, attributes: dict[str, Any]) -> None:
    numbers = RANDOM.integers(-3, 4, (3, 7)).astype(np.int32)
    for op_type, x, opset in (("CumProd", normal(3, 7), 26), ("CumProd", numbers, 26), ("CumSum", numbers, 14)):
        model = one_node(op_type, {"x": x}, {"axis": np.array(axis)}, opset=opset, **attributes)
        assert_close(ours(model, [x]), by_reference(model, [x]), 0 if x.dtype == np.int32 else 3e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 3, 3), (2, 3, 4, 4)])
def test_determinant(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    model = one_node("Det", {"x": x}, opset=11)
    assert_close(ours(model, [x]), [np.linalg.det(x.astype(np.float64)).astype(np.float32)], 1e-5)


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


def test_slices_backward() -> None:
    x = normal(7, 5, 4)
    constants = {
        "starts": np.array([5, -1, 10]), "ends": np.array([-1000, 1, 0]), "axes": np.array([0, -1, 1]),
        "steps": np.array([-2, -1, -3]),
    }  # fmt: skip
    model = one_node("Slice", {"x": x}, constants)
    assert_close(ours(model, [x]), [x[5::-2, 10:0:-3, -1:1:-1]], 0)


@pytest.mark.parametrize("bounds", [(1, 9, 3), (5, -4, -2), (3, 3, 1), (0.5, 2.0, 0.3)])
def test_constant_range(bounds: tuple[float, float, float]) -> None:
    dtype = np.int64 if isinstance(bounds[0], int) else np.float32
    names = ("start", "limit", "step")
    constants = {name: np.array(bound, dtype) for name, bound in zip(names, bounds, strict=True)}
    model = one_node("Range", {}, constants, opset=11)
    assert_close(ours(model, []), by_reference(model, []))


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


def test_dropout_outside_of_training_keeps_everything() -> None:
    x = normal(3, 4)
    model = one_node("Dropout", {"x": x}, outputs=["y", "mask"], opset=13)
    assert_close(ours(model, [x]), [x, np.ones((3, 4), np.bool_)], 0)


def test_dropout_in_training_is_refused() -> None:
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    model = one_node("Dropout", {"x": normal(3, 4)}, constants, opset=13)
    with pytest.raises(UnsupportedError):
        ours(model, [normal(3, 4)])


def test_einsum_with_operands_of_rank_0() -> None:
    x, s = normal(3, 4), np.array(1.5, np.float32)
    model = one_node("Einsum", {"x": x, "s": s}, equation="ij,->ji")
    assert_close(ours(model, [x, s]), [x.T * s], 0)


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


TRAINING: dict[str, tuple[int, dict[str, Any]]] = {
    "Adagrad": (1, {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01}),
    "Adam": (2, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-2, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1}),
    "Momentum": (1, {"alpha": 0.8, "beta": 0.3, "mode": "nesterov", "norm_coefficient": 0.01}),
}


@pytest.mark.parametrize("op_type", TRAINING)
@pytest.mark.parametrize("count", [0, 3])
def test_one_step_of_an_optimizer(op_type: str, count: int) -> None:
    states, fields = TRAINING[op_type]
    inputs = {"rate": np.array(0.1, np.float32), "count": np.array(count)}
    for group in ["x", "g", *[f"s{index}" for index in range(states)]]:
        for index, shape in enumerate([(2, 3), (4,)]):
            inputs[f"{group}{index}"] = np.abs(normal(*shape))
    outputs = [f"y{index}" for index in range(2 * (1 + states))]
    model = one_node(op_type, inputs, outputs=outputs, domain="ai.onnx.preview.training", **fields)
    for output, name in zip(model.graph.output, [*list(inputs)[2:4], *list(inputs)[6:]], strict=True):
        shape = inputs[name].shape
        output.type.tensor_type.elem_type = TensorProto.FLOAT
        output.type.tensor_type.shape.SetInParent()
        for extent in shape:
            output.type.tensor_type.shape.dim.add().dim_value = extent
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())), 1e-5)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("shape", "size"), [((1, 4, 1, 2), 2), ((2, 12, 2, 3), 2), ((1, 18, 3, 1), 3)])
def test_depth_to_space(mode: str, shape: tuple[int, ...], size: int) -> None:
    """More channels than blocks, and fewer."""
    x = normal(*shape)
    model = one_node("DepthToSpace", {"x": x}, blocksize=size, mode=mode)
    assert_close(ours(model, [x]), by_reference(model, [x]))


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


@pytest.mark.parametrize(("start", "end"), [(-100, -100), (-7, -9), (100, -100), (-1, 0), (1, -9), (-2, -2), (0, 2)])
@pytest.mark.parametrize("step", [-1, -2])
@pytest.mark.parametrize("extent", [1, 3, 5])
def test_slices_backward_from_beyond_the_ends(extent: int, step: int, start: int, end: int) -> None:
    x = normal(2, extent)
    bounds = {name: np.array([value]) for name, value in (("s", start), ("e", end), ("a", 1), ("t", step))}
    model = one_node("Slice", {"x": x}, bounds)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


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


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_sign_of_nan(kind: type[Any]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -3], kind)
    model = one_node("Sign", {"x": x})
    assert_close(ours(model, [x]), by_reference(model, [x]), 0.0)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("order", [["x", "low"], ["x", "", "high"], ["x", "low", "high"]])
@pytest.mark.parametrize("constant", [False, True])
def test_clip_keeps_nan(constant: bool, order: list[str], kind: type[Any]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.5, 7, -3], np.float32)
    x = x.astype(kind) if kind in (np.float32, np.float16) else np.array([0, 1, 2, 3, 9, 100], kind)
    given = {name: np.array(1 if name == "low" else 3, kind) for name in order[1:] if name}
    model = one_node("Clip", {"x": x, **({} if constant else given)}, given if constant else {}, order=order, opset=17)
    inputs = [x] if constant else [x, *given.values()]
    assert_close(ours(model, inputs), by_reference(model, inputs), 0.0)


def test_thresholded_relu_of_nan() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.5, 1.0, -1.0], np.float32)
    model = one_node("ThresholdedRelu", {"x": x}, alpha=0.5)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


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


@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_over_an_infinity(reverse: int) -> None:
    x = np.array([[1.0, 2.0, np.inf, 3.0], [1.0, np.nan, 2.0, 3.0]], np.float32)
    model = one_node("CumSum", {"x": x}, {"axis": np.array(-1)}, exclusive=1, reverse=reverse)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


def test_prelu_with_a_slope_for_each_element() -> None:
    x, slope = normal(1, 5, 5), normal(1, 5, 5)
    model = one_node("PRelu", {"x": x, "slope": slope}, opset=16)
    assert_close(ours(model, [x, slope]), by_onnxruntime(model, [x, slope]))


@pytest.mark.parametrize("padding", [{}, {"pads": [0, 1, 1, 0]}, {"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"},
                                     {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}])  # fmt: skip
def test_places_of_a_max_pool_count_through_the_whole_tensor(padding: dict[str, Any]) -> None:
    x = RANDOM.permutation(2 * 3 * 7 * 5).reshape(2, 3, 7, 5).astype(np.float32)
    model = one_node("MaxPool", {"x": x}, outputs=["y", "places"], kernel_shape=[2, 2], strides=[2, 1], **padding)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_logarithms_of_sums_that_overflow(opset: int, keepdims: int) -> None:
    x = normal(3, 4, 5) * 1000
    x[0, 0], x[1, 1, 0], x[2, 2, 2] = -np.inf, np.inf, np.nan
    constants = {} if opset == 13 else {"axes": np.array([2, -2])}
    attributes: dict[str, Any] = {"axes": [2, -2]} if opset == 13 else {}
    model = one_node("ReduceLogSumExp", {"x": x}, constants, opset=opset, keepdims=keepdims, **attributes)
    wide = x.astype(np.float64)
    largest = wide.max((1, 2), keepdims=True)
    shift = np.where(np.isinf(largest), 0, largest)
    expected = np.log(np.exp(wide - shift).sum((1, 2), keepdims=True)) + shift
    assert_close(ours(model, [x]), [(expected if keepdims else expected[:, 0, 0]).astype(np.float32)])
    x = normal(3, 4).astype(np.float16) * 10
    model = one_node("ReduceLogSumExp", {"x": x}, opset=18, keepdims=keepdims)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-2)


@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
def test_norms_of_float64(axes: list[int] | None) -> None:
    x = normal(2, 3, 4).astype(np.float64)
    constants = {} if axes is None else {"axes": np.array(axes)}
    model = one_node("ReduceL2", {"x": x}, constants, keepdims=0)
    wanted = np.sqrt((x**2).sum(None if axes is None else tuple(axes)))
    np.testing.assert_allclose(ours(model, [x])[0], wanted, rtol=1e-14)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.5}, {"gamma": 0.5}])
def test_defaults_of_selu(attributes: dict[str, Any]) -> None:
    x = normal(3, 4)
    model = one_node("Selu", {"x": x}, **attributes)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 3e-7)


@pytest.mark.parametrize(("op_type", "attributes"), [("HardSwish", {}), ("Gelu", {"approximate": "tanh"})])
def test_constants_of_the_standard_are_float32(op_type: str, attributes: dict[str, Any]) -> None:
    x = RANDOM.standard_normal((3, 4))
    model = one_node(op_type, {"x": x}, **attributes)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-13)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_cubic_sampling_brings_back_each_tap(padding: str, align_corners: int) -> None:
    x, grid = normal(2, 1, 2, 3), (RANDOM.random((2, 4, 5, 2)) * 5 - 2.5).astype(np.float32)
    model = one_node("GridSample", {"x": x, "grid": grid}, opset=17, mode="bicubic", padding_mode=padding,
                     align_corners=align_corners)  # fmt: skip
    assert_close(ours(model, [x, grid]), by_onnxruntime(model, [x, grid]))
