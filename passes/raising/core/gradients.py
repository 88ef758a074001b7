"""Gradients of activations, in the order of PyTorch's kernels, which decides about infinities."""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.mlir import math
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    add,
    applied,
    both,
    compare_number,
    divide,
    like,
    multiply,
    negate,
    scaled,
    select,
    subtract,
)


def _elu(gradient: Scalar, value: Scalar, alpha: float, scale: float, input_scale: float, is_result: bool) -> Scalar:
    """A NaN counts as below zero, as in PyTorch's vector loops."""
    steep = alpha * scale
    curve = scaled(applied(math.ExpOp, scaled(value, input_scale)), steep)
    below = add(value, like(steep, value)) if is_result else curve
    return select(
        compare_number("gt", value, 0), scaled(gradient, scale), multiply(scaled(gradient, input_scale), below)
    )


def _hard_tanh(gradient: Scalar, value: Scalar, low: float, high: float) -> Scalar:
    """0 for a NaN, as in PyTorch's vector loops."""
    within = both(compare_number("gt", value, low), compare_number("lt", value, high))
    return select(within, gradient, like(0, gradient))


def _sigmoid(gradient: Scalar, result: Scalar) -> Scalar:
    """``gradient * (1 - y) * y``."""
    return multiply(multiply(gradient, subtract(like(1, result), result)), result)


def _silu(gradient: Scalar, value: Scalar) -> Scalar:
    """``gradient * s * (1 + x * (1 - s))`` with s the sigmoid of x."""
    one = like(1, value)
    sigmoid = divide(one, add(one, applied(math.ExpOp, negate(value))))
    return multiply(multiply(gradient, sigmoid), add(one, multiply(value, subtract(one, sigmoid))))


def _tanh(gradient: Scalar, result: Scalar) -> Scalar:
    """``gradient * (1 - y * y)``."""
    return multiply(gradient, subtract(like(1, result), multiply(result, result)))


def _threshold(gradient: Scalar, value: Scalar, limit: float) -> Scalar:
    """``0 if x <= threshold else gradient``."""
    return select(compare_number("le", value, limit), like(0, gradient), gradient)


GRADIENTS: Mapping[str, Pointwise] = {
    "elu_backward": Pointwise(_elu, (0, 5)),
    "hardtanh_backward": Pointwise(_hard_tanh, 2),
    "sigmoid_backward": Pointwise(_sigmoid, 2),
    "silu_backward": Pointwise(_silu, 2),
    "tanh_backward": Pointwise(_tanh, 2),
    "threshold_backward": Pointwise(_threshold, 2),
}
"""By the name of the op in ATen."""
