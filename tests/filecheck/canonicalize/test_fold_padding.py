"""fold-padding: padded copies before convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

PADDED = """
func.func @main(%x: tensor<1x2x5x6xf32>) -> RESULT {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3x2x3x3xf32>
  %v = arith.constant VALUE : f32
  %p = tensor.pad %x low[LOW] high[0, 0, 1, 2] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %v : f32
  } : tensor<1x2x5x6xf32> to PADDED
  %r = OP
  return %r : RESULT
}
"""
CONV = (
    '"lk.conv"(%p, %w) {channels_last = false, strides = array<i64: 1, 1>, padding = array<i64: 1, 0, 0, 1>,'
    " dilation = array<i64: 1, 1>, groups = 1 : i64, accumulate = f32} : (PADDED, tensor<3x2x3x3xf32>) -> RESULT"
)
MAX = (
    '"lk.max_pool"(%p) {channels_last = false, kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>,'
    " padding = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1>} : (PADDED) -> RESULT"
)
AVG = (
    '"lk.avg_pool"(%p) {channels_last = false, kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>,'
    " padding = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1>, count_include_pad = COUNT, divisor = 0 : i64,"
    " ceil_extra = array<i64: 0, 0>} : (PADDED) -> RESULT"
)
WEIGHTS = {"w": random_array(3, 2, 3, 3, seed=5)}
PLAIN = "tensor<1x2x7x8xf32>"


def padded(op: str, value: str, result: str, low: str = "0, 0, 1, 0", shape: str = PLAIN) -> str:
    text = PADDED.replace("OP", op).replace("RESULT", result).replace("PADDED", shape)
    return text.replace("VALUE", value).replace("LOW", low)


@pytest.mark.parametrize(
    ("op", "value", "result", "padding"),
    [
        (CONV, "0.0", "tensor<1x3x6x7xf32>", "2, 1, 0, 3"),
        (MAX, "0xFF800000", "tensor<1x2x5x6xf32>", "1, 1, 0, 2"),
        (AVG.replace("COUNT", "true"), "0.0", "tensor<1x2x5x6xf32>", "1, 1, 0, 2"),
    ],
)
def test_folds(check: Check, op: str, value: str, result: str, padding: str) -> None:
    text = padded(op, value, result)
    check(text, "fold-padding", f"// CHECK-NOT: tensor.pad\n// CHECK: padding = array<i64: {padding}>", WEIGHTS)
    assert_same_results(text, "fold-padding", [random_array(1, 2, 5, 6)], WEIGHTS, tolerance=1e-6)


@pytest.mark.parametrize(
    ("op", "value", "result"),
    [
        (CONV, "1.0", "tensor<1x3x6x7xf32>"),  # a convolution pads with zeros
        (MAX, "0.0", "tensor<1x2x5x6xf32>"),  # zero may win against negative elements
        (AVG.replace("COUNT", "false"), "0.0", "tensor<1x2x5x6xf32>"),  # the pool would not count the padding
    ],
)
def test_another_value_or_another_count_stays(check: Check, op: str, value: str, result: str) -> None:
    check(padded(op, value, result), "fold-padding", "// CHECK: tensor.pad", WEIGHTS)


@pytest.mark.parametrize(("unsigned", "value", "stored"), [("true", "200", "-56"), ("false", "-56", "-56")])
def test_an_integer_convolution_takes_any_value(check: Check, unsigned: str, value: str, stored: str) -> None:
    op = CONV.replace("lk.conv", "lk.integer_conv").replace(
        "accumulate = f32", f"padding_value = 3 : i64, unsigned = {unsigned}"
    )
    op = op.replace("1, 0, 0, 1", "0, 0, 0, 0")
    text = padded(op, stored, "tensor<1x3x5x6xi32>").replace("f32", "i8").replace("3x5x6xi8", "3x5x6xi32")
    given = {"w": RANDOM.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)}
    expected = f"padding = array<i64: 1, 1, 0, 2>, padding_value = {value} : i64"
    check(text, "fold-padding", f"// CHECK-NOT: tensor.pad\n// CHECK: {expected}", given)
    x = RANDOM.integers(-128, 128, (1, 2, 5, 6)).astype(np.int8)
    assert_same_results(text, "fold-padding", [x], given)
    already = text.replace("0, 0, 0, 0>, dilation", "1, 0, 0, 0>, dilation").replace("3x5x6xi32", "3x6x6xi32")
    check(already, "fold-padding", "// CHECK: tensor.pad", given)


def test_padded_channels_stay(check: Check) -> None:
    text = padded(CONV, "0.0", "tensor<1x3x5x7xf32>", low="0, 1, 0, 0", shape="tensor<1x3x6x8xf32>")
    text = text.replace("3x2x3x3", "3x3x3x3")
    text = text.replace("tensor<1x3x5x7xf32>", "tensor<1x3x5x7xf32>")
    check(text, "fold-padding", "// CHECK: tensor.pad", {"w": random_array(3, 3, 3, 3)})


def test_a_window_of_padding_alone_stays(check: Check) -> None:
    """Three rows of -infinity above: the first window of the copy sees nothing else, which a pool cannot express."""
    text = padded(MAX, "0xFF800000", "tensor<1x2x7x6xf32>", low="0, 0, 3, 0", shape="tensor<1x2x9x8xf32>")
    check(text, "fold-padding", "// CHECK: tensor.pad")
    with np.errstate(invalid="ignore"):
        assert_same_results(text, "fold-padding", [random_array(1, 2, 5, 6)], WEIGHTS)
