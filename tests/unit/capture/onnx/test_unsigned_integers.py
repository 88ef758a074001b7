"""Unsigned integers of more than 8 bits compute what numpy computes, at the ends of their ranges too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from lowerkit.capture.onnx.capture import capture_onnx
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, one_node, ours

DTYPES = [np.uint16, np.uint32, np.uint64]
Unsigned = type[np.unsignedinteger]


def numbers(dtype: Unsigned, count: int = 64) -> Array:
    """Random numbers of all magnitudes, with the ends of the range among them."""
    bits = np.iinfo(dtype).bits
    found = (RANDOM.integers(0, 1 << 63, count).astype(np.uint64) * 2 + 1) >> RANDOM.integers(
        64 - bits, 64, count
    ).astype(np.uint64)
    found[:4] = [0, 1, np.iinfo(dtype).max, np.iinfo(dtype).max // 2 + 1]
    return RANDOM.permutation(found.astype(dtype))


OPS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseXor": np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op_type", OPS)
def test_of_two(op_type: str, dtype: Unsigned) -> None:
    x, y = numbers(dtype), numbers(dtype)
    if op_type in ("Div", "Mod"):
        y = np.maximum(y, 1).astype(dtype)
    assert_close(ours(one_node(op_type, {"x": x, "z": y}), [x, y]), [OPS[op_type](x, y)], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(direction: str, dtype: Unsigned) -> None:
    x, count = numbers(dtype), RANDOM.integers(0, np.iinfo(dtype).bits, 64).astype(dtype)
    count[:2] = [0, np.iinfo(dtype).bits - 1]
    wanted = np.left_shift(x, count) if direction == "LEFT" else np.right_shift(x, count)
    assert_close(ours(one_node("BitShift", {"x": x, "n": count}, direction=direction), [x, count]), [wanted], 0)


@pytest.mark.parametrize("dtype", [*DTYPES, np.uint8])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_the_width_or_more_leave_nothing(dtype: Unsigned, direction: str) -> None:
    bits = np.iinfo(dtype).bits
    x = numbers(dtype)[:6]
    count = np.array([bits - 1, bits, bits + 1, 2 * bits, 200, np.iinfo(dtype).max], dtype)
    wanted = np.left_shift(x, count) if direction == "LEFT" else np.right_shift(x, count)
    wanted[count >= bits] = 0
    assert_close(ours(one_node("BitShift", {"x": x, "n": count}, direction=direction), [x, count]), [wanted], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_not(dtype: Unsigned) -> None:
    x = numbers(dtype)
    assert_close(ours(one_node("BitwiseNot", {"x": x}), [x]), [~x], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", [np.float32, np.float64, np.int64, np.int32, np.uint16, np.uint32, np.uint64, np.bool_])
def test_conversions(dtype: Unsigned, to: type[np.generic]) -> None:
    x = numbers(dtype)
    model = one_node("Cast", {"x": x}, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    assert_close(ours(model, [x]), [x.astype(to)], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_order(dtype: Unsigned) -> None:
    x = numbers(dtype)
    model = one_node("TopK", {"x": x}, {"k": np.array([5])}, outputs=["values", "places"])
    values, places = ours(model, [x])
    np.testing.assert_array_equal(values, np.sort(x)[::-1][:5])
    np.testing.assert_array_equal(x[places], values)


def test_bits_become_floats() -> None:
    x = RANDOM.standard_normal(7).astype(np.float32)
    model = one_node("BitCast", {"x": x.view(np.uint32)}, to=int(TensorProto.FLOAT), opset=26)
    assert_close(ours(model, [x.view(np.uint32)]), [x], 0)


def test_constants_and_the_signature_are_unsigned() -> None:
    x, y = numbers(np.uint16, 8), numbers(np.uint16, 8)
    model = one_node("Add", {"x": x}, {"z": y})
    signature = capture_onnx(model).signature
    assert [spec.dtype for spec in (*signature.inputs, *signature.outputs)] == ["u16", "u16"]
    assert_close(ours(model, [x]), [x + y], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits(dtype: Unsigned) -> None:
    x, half = numbers(dtype), np.iinfo(dtype).max // 2
    low, high = dtype(half // 3), dtype(half + 2)
    model = one_node("Clip", {"x": x}, {"low": np.array(low), "high": np.array(high)})
    assert_close(ours(model, [x]), [np.clip(x, low, high)], 0)


REDUCTIONS = {"ReduceMax": np.max, "ReduceMin": np.min, "ReduceSum": np.sum}


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions(op_type: str, dtype: Unsigned) -> None:
    x = numbers(dtype).reshape(8, 8)
    wanted = REDUCTIONS[op_type](x, axis=1, keepdims=True).astype(dtype)
    assert_close(ours(one_node(op_type, {"x": x}, {"axes": np.array([1])}), [x]), [wanted], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("reduction", "step"), [("max", np.maximum), ("add", np.add), ("none", lambda _, new: new)])
def test_scattered(reduction: str, step: Any, dtype: Unsigned) -> None:
    x, new, places = numbers(dtype, 16), numbers(dtype, 8), RANDOM.permutation(16)[:8]
    wanted = x.copy()
    wanted[places] = step(x[places], new)
    model = one_node("ScatterElements", {"x": x, "places": places, "new": new}, reduction=reduction, axis=0)
    assert_close(ours(model, [x, places, new]), [wanted], 0)
