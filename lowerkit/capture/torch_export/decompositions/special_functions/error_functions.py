"""The complement of the error function, its inverse and its kin, in float64 whatever the element type.

Formulas: Cephes ``ndtr.c`` (Moshier): rational functions for ``exp(x^2) erfc(x)`` from 1 to 8, and above. The inverse
starts from Giles 2010 ("Approximating the erfinv function", single precision), beyond its range from two steps of
``x^2 = -log(1 - y) - log(x sqrt(pi))``, and takes two steps of Halley.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

_MIDDLE = (
    (
        *(2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1),
        *(1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3),
        5.57535335369399327526e2,
    ),
    (
        *(1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2),
        *(1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2),
    ),
)
_FAR = (
    (
        *(5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195),
        *(7.40974269950448939160, 2.97886665372100240670),
    ),
    (
        *(1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1, 1.70814450747565897222e1),
        *(9.60896809063285878198, 3.36907645100081516050),
    ),
)
"""Numerator and denominator, the highest power first."""
_GILES_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_GILES_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)
_SINGLE = 16.0
"""Of -log(1 - y^2) less 2.5 below 5, of its root less 3 above; the highest power first."""


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    found = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        found = found * x + coefficient
    return found


def _scaled_from_one(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x) for x of 1 and more."""
    near = x.clamp(1, 8)
    middle = _polynomial(near, _MIDDLE[0]) / _polynomial(near, _MIDDLE[1])
    inverse = 1 / x.clamp(min=8)  # polynomials of x would overflow
    far = _polynomial(inverse, _FAR[0][::-1]) / _polynomial(inverse, _FAR[1][::-1]) * inverse
    return torch.where(x < 8, middle, far)


def _scaled(x: Tensor) -> Tensor:
    size = x.abs()
    inner = torch.exp(x * x) * (1 - torch.erf(x))
    outer = _scaled_from_one(size)
    # Twice an overflowing power is infinite, less a small number still.
    return torch.where(size < 1, inner, torch.where(x > 0, outer, 2 * torch.exp(x * x) - outer))


def _complement(x: Tensor) -> Tensor:
    size = x.abs()
    tail = torch.exp(-x * x) * _scaled_from_one(size)
    return torch.where(size < 1, 1 - torch.erf(x), torch.where(x > 0, tail, 2 - tail))


def _inverse(y: Tensor) -> Tensor:
    """x with erf(x) = y: infinite at 1 and -1, NaN beyond."""
    size = y.abs()
    depth = -torch.log1p(-size) - torch.log1p(size)
    near = _polynomial(depth.clamp(max=5.0) - 2.5, _GILES_NEAR)
    far = _polynomial(torch.sqrt(depth.clamp(min=5.0, max=40.0)) - 3.0, _GILES_FAR)
    single = torch.where(depth < 5.0, near, far) * size
    log = -torch.log1p(-size).clamp(max=-_SINGLE)
    beyond = log.sqrt()
    for _ in range(2):
        beyond = torch.sqrt(log - torch.log(beyond * math.sqrt(math.pi)))
    x = torch.where(depth < _SINGLE, single, beyond)
    for _ in range(2):
        # Near 1 the complements differ by more than the functions do.
        error = torch.where(x < 1, torch.erf(x) - size, (1 - size) - _complement(x))
        step = error / (2 / math.sqrt(math.pi) * torch.exp(-x * x))
        x = x - step / (1 + x * step)
    x = torch.where(size == 1, math.inf, torch.where(size > 1, math.nan, x))
    return torch.where(y == 0, y, torch.where(y < 0, -x, x))


def _in_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def compute(value: Tensor) -> Tensor:
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        x = value.to(torch.float64)
        return torch.where(torch.isnan(x), x, function(x)).to(dtype)

    return compute


TABLE: dict[Any, Callable[..., Any]] = {
    aten.erfc.default: _in_float64(_complement),
    aten.erfinv.default: _in_float64(_inverse),
    aten.special_erfcx.default: _in_float64(_scaled),
}
"""By overload."""
