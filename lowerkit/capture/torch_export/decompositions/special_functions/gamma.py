"""The gamma function and its kin, in float64 whatever the element type: logarithm, derivatives, the zeta function.

Formulas: Abramowitz and Stegun, 6.1.40 (Stirling), 6.3.18 (digamma), 6.4.7 (reflection), 23.2.7; Euler-Maclaurin for
the zeta function. Arguments are raised to where the series are exact to 1e-15.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import run_while
from lowerkit.capture.torch_export.operators import aten

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330),
    *(854513 / 138, -236364091 / 2730),
)
"""B2, B4, ... B24."""
_RAISED = 10
"""Steps by which small arguments are raised."""


def _float64(value: Tensor) -> Tensor:
    return value.to(torch.float64)


def _result(value: Tensor, like: Tensor) -> Tensor:
    """``value`` in the element type of an argument; integers give the default one."""
    return value.to(like.dtype if like.is_floating_point() else torch.get_default_dtype())


def _series(inverse_square: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    found = torch.full_like(inverse_square, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * inverse_square + coefficient
    return found


def _from_whole(value: Tensor) -> Tensor:
    """The signed distance to the nearest integer, exact; 0 for an infinity."""
    return torch.where(torch.isinf(value), 0.0, value - torch.round(value))


def log_gamma(value: Tensor) -> Tensor:
    """log |gamma(x)| of a float64: infinite at 0, -1, -2, ..."""
    reflected = value < 0.5
    x = torch.where(reflected, 1 - value, value)
    is_zero = (x == 1) | (x == 2)
    product = torch.ones_like(x)
    for _ in range(_RAISED):
        small = x < _RAISED
        product = torch.where(small, product * x, product)
        x = torch.where(small, x + 1, x)
    stirling = (x - 0.5) * torch.log(x) - x + 0.5 * math.log(2 * math.pi) + _series(1 / (x * x), _STIRLING) / x
    positive = torch.where(torch.isinf(x), math.inf, stirling - torch.log(product))
    positive = torch.where(is_zero, 0.0, positive)
    sine = torch.sin(math.pi * _from_whole(value).abs())
    negative = math.log(math.pi) - torch.log(sine) - positive
    # Beyond 2^52 all are integers, and both terms infinite; the product of pi and a denormal is not exact.
    negative = torch.where(torch.isinf(value) | (sine == 0), math.inf, negative)
    negative = torch.where(value.abs() < 2.0**-60, -torch.log(value.abs()), negative)
    return torch.where(reflected, negative, positive)


def digamma(value: Tensor) -> Tensor:
    """The derivative of :func:`log_gamma` of a float64: NaN at -1, -2, ..., infinite at 0."""
    reflected = value < 0.5
    x = torch.where(reflected, 1 - value, value)
    below = torch.zeros_like(x)
    for _ in range(_RAISED):
        small = x < _RAISED
        below = torch.where(small, below + 1 / x, below)
        x = torch.where(small, x + 1, x)
    square = 1 / (x * x)
    positive = torch.log(x) - 0.5 / x - square * _series(square, _DIGAMMA) - below
    turned = positive - math.pi / torch.tan(math.pi * _from_whole(value))
    found = torch.where(reflected, turned, positive)
    found = torch.where((value < 0) & (torch.trunc(value) == value), math.nan, found)
    return torch.where(value == 0, -torch.reciprocal(value), found)


def _tail(s: Any, a: Tensor) -> Tensor:
    """sum of (a + k)^-s over all k >= 0, for a of 10 and more, s above 1 (Euler-Maclaurin)."""
    power = torch.pow(a, -s)
    found = power * a / (s - 1) + power / 2
    factor = s * power / a
    square = 1 / (a * a)
    for index, bernoulli in enumerate(_BERNOULLI):
        order = 2 * index + 2
        found = found + factor * (bernoulli / math.factorial(order))
        factor = factor * (s + order - 1) * (s + order) * square
    return found


def _polygamma(n: int, value: Tensor) -> Tensor:
    """The n-th derivative of digamma: (-1)^(n+1) n! zeta(n + 1, x); below 0.5 by reflection at 1/2."""
    x = _float64(value)
    if n == 0:
        return _result(digamma(x), value)
    reflected = x < 0.5
    a = torch.where(reflected, 1 - x, x)
    total = torch.zeros_like(a)
    for _ in range(max(_RAISED, n)):
        total = total + torch.pow(a, -(n + 1))
        a = a + 1
    sign = 1.0 if n % 2 else -1.0
    positive = sign * math.gamma(n + 1) * (total + _tail(float(n + 1), a))
    # n-th derivative of cot(pi x): pi^n P(cot), with P0 = c and P' multiplied by -(1 + c^2) each time.
    polynomial = [0.0, 1.0]
    for _ in range(n):
        slope = [power * factor for power, factor in enumerate(polynomial)][1:]
        polynomial = [-(one + other) for one, other in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    # Beyond a quarter by the complement: the cotangent of a half is 0, and pi has no exact half to be 0 at.
    distance = _from_whole(x)
    complement = torch.sign(distance) * torch.tan(math.pi * (0.5 - distance.abs()))
    cotangent = torch.where(distance.abs() > 0.25, complement, 1 / torch.tan(math.pi * distance))
    derivative = torch.full_like(x, polynomial[-1])
    for factor in reversed(polynomial[:-1]):
        derivative = derivative * cotangent + factor
    negative = -(math.pi ** (n + 1)) * derivative - sign * positive
    found = torch.where(reflected, negative, positive)
    found = torch.where((x <= 0) & (torch.trunc(x) == x), sign * math.inf, found)
    if n == 1:  # eager's own series for it ends where the other derivatives give NaN, and begins where they do not
        found = torch.where(x == math.inf, 0.0, torch.where(x == -math.inf, math.nan, found))
    return _result(found, value)


def _zeta(s: Any, q: Any) -> Tensor:
    """The Hurwitz zeta function: the sum of (q + k)^-s over all k >= 0.

    Infinite for s = 1 and for a pole at q; NaN for s below 1, and for q below 0 where s is no integer.
    """
    s, q = (side if isinstance(side, Tensor) else torch.full((), side) for side in (s, q))
    dtype = torch.result_type(s, q)
    one, start = torch.broadcast_tensors(_float64(s), _float64(q))
    pole = (start <= 0) & (torch.floor(start) == start)
    undefined = (one < 1) | ((start <= 0) & (torch.floor(one) != one)) | torch.isnan(one) | torch.isnan(start)
    # Those without a value take no turns.
    a, exponent = torch.where(pole | undefined, 10.0, start), torch.where(one > 1, one, 2.0)

    def more(total: Tensor, a: Tensor, exponent: Tensor) -> Tensor:
        return (a < _RAISED).any()

    def body(total: Tensor, a: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
        small = a < _RAISED
        return torch.where(small, total + torch.pow(a, -exponent), total), torch.where(small, a + 1, a)

    total, a = run_while(more, body, (torch.zeros_like(a), a.clone()), (exponent.clone(),))
    # Beside the sum a next term may be nothing, whose factor in what is left is an infinity.
    ended = torch.pow(a, -exponent) < torch.finfo(torch.float64).eps * total
    found = torch.where(ended, total, total + _tail(exponent, a))
    # Eager multiplies s (s + 1) ... (s + 22) by powers of q: of more than any number by 0 it makes NaN.
    undefined = undefined | ((found == 0) & torch.isinf(torch.pow(exponent, 23.0)))
    found = torch.where(undefined, math.nan, found)
    infinite = (one == 1) | (pole & ~(one < 1))
    return torch.where(infinite, math.inf, found).to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def _log_gamma(value: Tensor) -> Tensor:
    return _result(log_gamma(_float64(value)), value)


def _digamma(value: Tensor) -> Tensor:
    return _result(digamma(_float64(value)), value)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.lgamma.default: _log_gamma,
    aten.digamma.default: _digamma,
    aten.polygamma.default: _polygamma,
    aten.special_zeta.default: _zeta,
    aten.special_zeta.other_scalar: _zeta,
    aten.special_zeta.self_scalar: _zeta,
}
"""By overload."""
