"""Functions of single elements, and distances, written out of simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten


def _angle(value: Tensor) -> Tensor:
    """The angle of a real number: pi where it is negative (and not -0), NaN where it is NaN."""
    wide = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    zero = torch.zeros_like(wide)  # numbers alone would be chosen among in f32
    angle = torch.where(wide < 0, zero + math.pi, zero)
    return torch.where(torch.isnan(wide), wide, angle)


def _fmin(left: Tensor, right: Tensor) -> Tensor:
    """The smaller of two, a number rather than a NaN."""
    left, right = _common(left, right)
    return torch.where(torch.isnan(left), right, torch.where(torch.isnan(right), left, torch.minimum(left, right)))


def _fmax(left: Tensor, right: Tensor) -> Tensor:
    """The larger of two, a number rather than a NaN."""
    left, right = _common(left, right)
    return torch.where(torch.isnan(left), right, torch.where(torch.isnan(right), left, torch.maximum(left, right)))


def _hypot(left: Tensor, right: Tensor) -> Tensor:
    """``larger * sqrt(1 + (smaller / larger)^2)``, which does not overflow on the way; infinite where one side is."""
    left, right = (side.abs() for side in _common(left, right))
    larger, smaller = torch.maximum(left, right), torch.minimum(left, right)
    ratio = torch.where(larger == 0, 0.0, smaller / larger)
    length = larger * torch.sqrt(1 + ratio * ratio)
    return torch.where(torch.isinf(left) | torch.isinf(right), math.inf, length)


def _copysign(value: Tensor, sign: Tensor) -> Tensor:
    """The magnitude of one with the sign of the other, that of a zero or a NaN too."""
    dtype = torch.result_type(value, sign)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    magnitude, other = torch.broadcast_tensors(value.to(dtype), sign.to(dtype))
    size = magnitude.abs()
    return torch.where(torch.signbit(other), -size, size)


def _is_close(value: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Equal, or finite and no further apart than ``atol + |rtol * other|``."""
    close = value == other
    if equal_nan and value.is_floating_point():
        close = close | (torch.isnan(value) & torch.isnan(other))
    if rtol == 0 and atol == 0:
        return close
    default = torch.get_default_dtype()
    left = value.to(default) if value.dtype is torch.bool else value
    right = other if other.is_floating_point() else other.to(default)
    allowed, actual = atol + (rtol * right).abs(), (left - right).abs()
    return close | (torch.isfinite(actual) & (actual <= allowed))


def _log_add_exp(left: Tensor, right: Tensor) -> Tensor:
    """``larger + log1p(exp(-distance))``; of equal infinities, themselves."""
    return _log_add(left, right, torch.exp, 1.0)


def _log_add_exp2(left: Tensor, right: Tensor) -> Tensor:
    """The same to base 2."""
    return _log_add(left, right, torch.exp2, 1 / math.log(2))


def _log_add(left: Tensor, right: Tensor, power: Callable[[Tensor], Tensor], scale: float) -> Tensor:
    left, right = _common(left, right)
    if not left.is_floating_point():
        return NotImplemented
    wide = torch.float32 if left.element_size() == 2 else left.dtype
    one, other = left.to(wide), right.to(wide)
    rest = torch.log1p(power(-(one - other).abs()))
    total = torch.maximum(one, other) + (rest if scale == 1 else rest * scale)
    return torch.where(torch.isinf(one) & (one == other), one, total).to(left.dtype)


def _common(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.result_type(left, right)
    return torch.broadcast_tensors(left.to(dtype), right.to(dtype))


def _computed(*values: Tensor) -> tuple[torch.dtype, list[Tensor]]:
    """The type that tensors promote to, and they in the type that PyTorch computes in: f32 for 16-bit floats."""
    dtype = torch.result_type(values[0], values[-1])
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize == 2 else dtype
    return dtype, [value.to(wide) for value in values]


def _elu_backward(
    gradient: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, value: Tensor
) -> Tensor:
    """The gradient of elu: a NaN counts as below zero, as in PyTorch's vector loops."""
    dtype, (grad, x) = _computed(gradient, value)
    below = x + alpha * scale if is_result else alpha * scale * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * below).to(dtype)


def _hardtanh_backward(gradient: Tensor, value: Tensor, low: float, high: float) -> Tensor:
    """The gradient of hardtanh: 0 for a NaN, as in PyTorch's vector loops."""
    dtype, (grad, x) = _computed(gradient, value)
    return torch.where((x > low) & (x < high), grad, 0.0).to(dtype)


def _sigmoid_backward(gradient: Tensor, value: Tensor) -> Tensor:
    """``gradient * (1 - y) * y`` in PyTorch's order, which decides about infinities."""
    dtype, (grad, y) = _computed(gradient, value)
    return (grad * (1 - y) * y).to(dtype)


def _tanh_backward(gradient: Tensor, value: Tensor) -> Tensor:
    """``gradient * (1 - y * y)``."""
    dtype, (grad, y) = _computed(gradient, value)
    return (grad * (1 - y * y)).to(dtype)


def _threshold_backward(gradient: Tensor, value: Tensor, threshold: float) -> Tensor:
    """The gradient above the threshold, in the type that both promote to."""
    dtype, (grad, x) = _computed(gradient, value)
    return torch.where(x <= threshold, torch.zeros_like(grad), grad).to(dtype)


def _to_degrees(value: Tensor) -> Tensor:
    """torch-mlir's factor is wrong in the sixth digit."""
    return value * (180 / math.pi)


def _round_decimals(value: Tensor, *, decimals: int) -> Tensor:
    """Rounded to a decimal place, or to a power of ten: by a product and a quotient, in PyTorch's order."""
    if not value.is_floating_point():
        return NotImplemented
    dtype, (wide,) = _computed(value)
    power = 10.0 ** abs(decimals)
    if decimals == 0:
        return torch.round(value)
    found = torch.round(wide / power) * power if decimals < 0 else torch.round(wide * power) / power
    return found.to(dtype)


def _without_nan(
    value: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """nan_to_num: each replacement by what stood there, not by another replacement; integers have none of the three."""
    if not value.is_floating_point():
        return value.clone()
    limits = torch.finfo(value.dtype)
    above, below = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    finite = torch.where(value == math.inf, above, torch.where(value == -math.inf, below, value))
    return torch.where(torch.isnan(value), 0.0 if nan is None else nan, finite).to(value.dtype)


def _cdist_forward(left: Tensor, right: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """The p-norm of the difference of each row of ``left`` and each of ``right``."""
    return norm_of_difference(left.unsqueeze(-2) - right.unsqueeze(-3), p)


def norm_of_difference(difference: Tensor, p: float) -> Tensor:
    """The p-norm of the last dim as distances have it."""
    if p == 0:  # a count that a NaN makes NaN
        return torch.clamp(torch.ceil(difference.abs()), max=1.0).sum(-1)
    return torch.linalg.vector_norm(difference, p, dim=-1)


def _norm_of_all(value: Tensor, p: Any = 2) -> Tensor:
    """Spelled as one along every axis: torch-mlir's verifier has no bf16 for the other."""
    return aten.norm.ScalarOpt_dim(value, p, [], False)


def _evenly_spaced(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """PyTorch's order: from the start in the first half, from the end in the second.

    Refused for whole numbers, which eager's kernel cuts anew for each vector: they hang on the processor.
    """
    kind = dtype or torch.get_default_dtype()
    if not kind.is_floating_point:
        return NotImplemented
    wide = torch.float64 if kind == torch.float64 else torch.float32
    first, last = (
        bound.to(wide) if isinstance(bound, Tensor) else torch.full((), bound, dtype=wide) for bound in (start, end)
    )
    place = torch.arange(steps)
    step = (last - first) / max(steps - 1, 1)
    upward, downward = first + step * place.to(wide), last - step * (steps - 1 - place).to(wide)
    rising = place < steps // 2 if steps > 1 else place == 0
    return torch.where(rising, upward, downward).to(kind)


def _deviation_and_mean(
    value: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The deviation is that of ``std``, which goes by no variance that would overflow."""
    return torch.std(value, dim, correction=correction, keepdim=keepdim), torch.mean(value, dim, keepdim=keepdim)


def _deviation_and_mean_along(
    value: Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _deviation_and_mean(value, dim, correction=float(unbiased), keepdim=keepdim)


def _deviation_and_mean_of_all(value: Tensor, unbiased: bool = True) -> tuple[Tensor, Tensor]:
    return _deviation_and_mean(value, correction=float(unbiased))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.std_mean.correction: _deviation_and_mean,
    aten.std_mean.dim: _deviation_and_mean_along,
    aten.std_mean.default: _deviation_and_mean_of_all,
    aten.norm.Scalar: _norm_of_all,
    aten.linspace.Tensor_Tensor: _evenly_spaced,
    aten.linspace.Tensor_Scalar: _evenly_spaced,
    aten.linspace.Scalar_Tensor: _evenly_spaced,
    aten.angle.default: _angle,
    aten.fmin.default: _fmin,
    aten.fmax.default: _fmax,
    aten.hypot.default: _hypot,
    aten.copysign.Tensor: _copysign,
    aten.isclose.default: _is_close,
    aten.logaddexp.default: _log_add_exp,
    aten.logaddexp2.default: _log_add_exp2,
    aten.nan_to_num.default: _without_nan,
    aten._cdist_forward.default: _cdist_forward,
    aten.elu_backward.default: _elu_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.sigmoid_backward.default: _sigmoid_backward,
    aten.tanh_backward.default: _tanh_backward,
    aten.threshold_backward.default: _threshold_backward,
    aten.rad2deg.default: _to_degrees,
    aten.round.decimals: _round_decimals,
}
"""By overload."""
