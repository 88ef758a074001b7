"""The complement of the error function and its kin, in float64 whatever the element type.

Formulas: Cephes ``ndtr.c`` (Moshier): rational functions for ``exp(x^2) erfc(x)`` from 1 to 8, and above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.operators import aten

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


def _in_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def compute(value: Tensor) -> Tensor:
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        x = value.to(torch.float64)
        return torch.where(torch.isnan(x), x, function(x)).to(dtype)

    return compute


TABLE: dict[Any, Callable[..., Any]] = {
    aten.erfc.default: _in_float64(_complement),
    aten.special_erfcx.default: _in_float64(_scaled),
}
"""By overload."""
