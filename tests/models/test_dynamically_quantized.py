"""Models as ONNX Runtime's dynamic quantizer writes them run in integers, exactly, and as their owner does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.compiler import CompileOptions, compile_program, lower_program
from lowerkit.parity.check import check_program
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import by_onnxruntime

Array = np.ndarray[Any, Any]
WIDTH, HIDDEN = 24, 38


def lopsided(shape: tuple[int, int]) -> Array:
    """Normal values cut off below, so that an affine quantizer never puts zero in the middle of its codes: there the
    zero point would be that of symmetric weights, and its correction would rightly be left out."""
    return np.maximum(RANDOM.standard_normal(shape), -1.5)


def perceptron(folder: Path) -> Path:
    """Writes x + second(relu(first(x))) with a layer norm before it, batch and length symbolic."""
    random = RANDOM
    constants = {
        "scale": random.uniform(0.5, 2, WIDTH), "shift": random.standard_normal(WIDTH),
        "first": lopsided((WIDTH, HIDDEN)), "a": random.standard_normal(HIDDEN),
        "second": lopsided((HIDDEN, WIDTH)) * 0.1, "b": random.standard_normal(WIDTH),
    }  # fmt: skip
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "first"], ["p"], "up"),
        helper.make_node("Add", ["p", "a"], ["q"], "up_bias"),
        helper.make_node("Relu", ["q"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "second"], ["s"], "down"),
        helper.make_node("Add", ["s", "b"], ["t"], "down_bias"),
        helper.make_node("Add", ["x", "t"], ["y"], "residual"),
    ]
    shape = ("batch", "length", WIDTH)
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def convolution(folder: Path) -> Path:
    random = RANDOM
    weight = random.standard_normal((6, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 7, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 6, 7, 8))],
        [numpy_helper.from_array(weight, "w")],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def quantized(path: Path, *, signed: bool) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = path.with_name("quantized.onnx")
    weight_type = QuantType.QInt8 if signed else QuantType.QUInt8
    # Weights of 7 bits where they are signed: without VNNI, ONNX Runtime adds pairs of products in 16 bits.
    quantize_dynamic(str(path), str(target), per_channel=signed, weight_type=weight_type, reduce_range=signed)
    return onnx.load(str(target))


@pytest.mark.parametrize("signed", [True, False], ids=["symmetric", "with zero points"])
def test_linear_layers(signed: bool, tmp_path: Path) -> None:
    model = quantized(perceptron(tmp_path), signed=signed)
    program = capture_onnx(model)
    lower_program(program, "canonical", CompileOptions())
    assert program.text().count("lk.integer_matmul") == (2 if signed else 4)
    assert "lk.matmul" not in program.text()
    compiled = compile_program(program, CompileOptions())
    for shape in ((1, 1, WIDTH), (3, 5, WIDTH)):
        x = RANDOM.standard_normal(shape).astype(np.float32)
        (wanted,) = by_onnxruntime(model, [x])
        assert_equal_but_for_a_tie(compiled.session.run(x)[0], wanted)


def assert_equal_but_for_a_tie(found: Array, wanted: Array) -> None:
    """Sums between the two quantizations round in another order: near a tie one code of one row may be the next."""
    largest = np.abs(wanted).max()
    rows = np.abs(found - wanted).reshape(-1, WIDTH).max(axis=1)
    assert np.count_nonzero(rows > 1e-5 * largest) <= 1 and rows.max() < largest / 100


@pytest.mark.parametrize("signed", [True, False], ids=["symmetric", "with zero points"])
def test_every_kernel_is_exact(signed: bool, tmp_path: Path) -> None:
    model = quantized(perceptron(tmp_path), signed=signed)
    for value in (model.graph.input[0], model.graph.output[0]):
        for dim, extent in zip(value.type.tensor_type.shape.dim, (2, 7, WIDTH), strict=True):
            dim.dim_value = extent
    x = RANDOM.standard_normal((2, 7, WIDTH)).astype(np.float32)
    report = check_program(capture_onnx(model, example_inputs=[x]))
    assert report.passed
    products = [row for row in report.integers if row.kind == "matmul"]
    assert len(products) >= 2
    assert all(row.exact and row.differing == 0 for row in products)
    assert len(report.owners) == 2, "one comparison with ONNX Runtime for each DynamicQuantizeLinear"


def test_a_padded_convolution(tmp_path: Path) -> None:
    model = quantized(convolution(tmp_path), signed=False)
    program = capture_onnx(model)
    lower_program(program, "canonical", CompileOptions())
    assert "lk.integer_conv" in program.text()
    assert "lk.conv" not in program.text()
    x = RANDOM.standard_normal((2, 3, 7, 8)).astype(np.float32)
    (wanted,) = by_onnxruntime(model, [x])
    found = compile_program(program, CompileOptions()).session.run(x)[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
