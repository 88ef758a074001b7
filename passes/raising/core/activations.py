"""Activations: the formulas of PyTorch's CPU kernels, with their constants."""

from __future__ import annotations

import math as python_math
from collections.abc import Mapping

from lowerkit.mlir import math
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    absolute,
    add,
    applied,
    at_least,
    at_most,
    both,
    compare_number,
    divide,
    is_nan,
    like,
    multiply,
    negate,
    scaled,
    select,
    subtract,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017."""


def _plus(value: Scalar, number: float) -> Scalar:
    return add(value, like(number, value))


def _over(value: Scalar, number: float) -> Scalar:
    return value if number == 1 else divide(value, like(number, value))


def _relu(value: Scalar) -> Scalar:
    """A zero keeps its sign."""
    return value if value.is_unsigned else at_least(value, 0)


def _relu6(value: Scalar) -> Scalar:
    return at_most(_relu(value), 6)


def _sigmoid(value: Scalar) -> Scalar:
    return divide(like(1, value), _plus(applied(math.ExpOp, negate(value)), 1))


def _silu(value: Scalar) -> Scalar:
    return divide(value, _plus(applied(math.ExpOp, negate(value)), 1))


def _log1p_exp(value: Scalar) -> Scalar:
    return applied(math.Log1pOp, applied(math.ExpOp, value))


def _log_sigmoid(value: Scalar) -> Scalar:
    """``min(0, x) - log1p(exp(-abs(x)))``."""
    return subtract(at_most(value, 0), _log1p_exp(negate(absolute(value))))


def _softplus(value: Scalar, beta: float = 1, threshold: float = 20) -> Scalar:
    """``log1p(exp(beta x)) / beta``, and x itself above the threshold."""
    steep = scaled(value, beta)
    return select(compare_number("gt", steep, threshold), value, _over(_log1p_exp(steep), beta))


def _mish(value: Scalar) -> Scalar:
    """``x * tanh(log1p(exp(x)))``; above 20 the logarithm is x itself to the last bit of f32."""
    return multiply(value, applied(math.TanhOp, _softplus(value)))


def _elu(value: Scalar, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Scalar:
    """``scale * (x if x > 0 else alpha * expm1(input_scale * x))``."""
    curve = scaled(applied(math.ExpM1Op, scaled(value, input_scale)), alpha * scale)
    return select(compare_number("gt", value, 0), scaled(value, scale), curve)


def _selu(value: Scalar) -> Scalar:
    return _elu(value, _SELU_ALPHA, _SELU_SCALE)


def _celu(value: Scalar, alpha: float = 1) -> Scalar:
    return _elu(value, alpha, 1.0, 1.0 / alpha)


def _leaky_relu(value: Scalar, slope: float = 0.01) -> Scalar:
    return select(compare_number("gt", value, 0), value, multiply(value, like(slope, value)))


def _rrelu(value: Scalar, low: float, high: float, training: bool = False, *_: None) -> Scalar:
    if training:
        raise RefusalError("random slopes: call model.eval() before capture")
    return _leaky_relu(value, (low + high) / 2)


def _prelu(value: Scalar, slope: Scalar) -> Scalar:
    return select(compare_number("gt", value, 0), value, multiply(slope, value))


def _gelu(value: Scalar, approximate: str = "none") -> Scalar:
    """See ``recognize_gelu`` for the formulas: PyTorch multiplies by the root of 1/2."""
    if approximate == "none":
        curve = applied(math.ErfOp, scaled(value, python_math.sqrt(0.5)))
    else:
        cube = multiply(multiply(value, value), value)
        inner = add(value, scaled(cube, 0.044715))
        curve = applied(math.TanhOp, scaled(inner, python_math.sqrt(2 / python_math.pi)))
    return multiply(scaled(value, 0.5), _plus(curve, 1))


def _hard_ramp(value: Scalar) -> Scalar:
    return at_most(at_least(_plus(value, 3), 0), 6)


def _hard_sigmoid(value: Scalar) -> Scalar:
    return _over(_hard_ramp(value), 6)


def _hard_swish(value: Scalar) -> Scalar:
    return _over(multiply(value, _hard_ramp(value)), 6)


def _threshold(value: Scalar, limit: float, number: float) -> Scalar:
    """``number if x <= threshold else x``."""
    return select(compare_number("le", value, limit), like(number, value), value)


def _hard_shrink(value: Scalar, amount: float = 0.5) -> Scalar:
    """Zero within the amount."""
    inside = both(compare_number("ge", value, -amount), compare_number("le", value, amount))
    return select(inside, like(0, value), value)


def _soft_shrink(value: Scalar, amount: float = 0.5) -> Scalar:
    """Towards zero by the amount, and zero within it; NaN for NaN."""
    inside = select(is_nan(value), value, like(0, value))
    low = select(compare_number("lt", value, -amount), _plus(value, amount), inside)
    return select(compare_number("gt", value, amount), subtract(value, like(amount, value)), low)


def _tanh_shrink(value: Scalar) -> Scalar:
    return subtract(value, applied(math.TanhOp, value))


def _soft_sign(value: Scalar) -> Scalar:
    return divide(value, _plus(absolute(value), 1))


ACTIVATIONS: Mapping[str, Pointwise] = {
    "relu": Pointwise(_relu, wide=False),
    "relu6": Pointwise(_relu6, wide=False),
    "sigmoid": Pointwise(_sigmoid),
    "silu": Pointwise(_silu),
    "log_sigmoid": Pointwise(_log_sigmoid),
    "softplus": Pointwise(_softplus),
    "mish": Pointwise(_mish),
    "elu": Pointwise(_elu),
    "selu": Pointwise(_selu),
    "celu": Pointwise(_celu),
    "leaky_relu": Pointwise(_leaky_relu),
    "prelu": Pointwise(_prelu, 2, channels=1),
    "gelu": Pointwise(_gelu),
    "hardsigmoid": Pointwise(_hard_sigmoid),
    "hardswish": Pointwise(_hard_swish),
    "threshold": Pointwise(_threshold),
    "rrelu": Pointwise(_rrelu),
    "hardshrink": Pointwise(_hard_shrink),
    "softshrink": Pointwise(_soft_shrink),
    "tanhshrink": Pointwise(_tanh_shrink),
    "softsign": Pointwise(_soft_sign),
}
"""By the name of the op in ATen."""
