"""Orthogonal polynomials, by the recurrences and closed forms that PyTorch's kernels use, in the element type of ``x``.

Vocabulary
    degree      the second argument, cut to an integer; a tensor, so the number of turns is known at run time only.
    closed      an element for which a formula gives the value at once: a degree of 0 or 1, |x| = 1, angles.
    recurrence  ``r = f(k, q, p)``, with p and q the two values before; turns go on until every element has its degree,
                or is not a number.

Formulas: Abramowitz and Stegun, 22.7 (recurrences) and 22.3.15 to 22.3.18 (angles).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import run_while
from lowerkit.capture.torch_export.operators import aten

Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(k, x, q, p) -> the value of the next degree; k is a float."""

_HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}
"""Degrees above are NaN in PyTorch, so that no loop runs for ever."""


def _arguments(x: Any, n: Any) -> tuple[Tensor, Tensor]:
    """Returns x as floats and the degrees as integers, of one shape.

    PyTorch casts a degree to the type of x, and then to an integer: what none can hold becomes the smallest.
    """
    x, n = (side if isinstance(side, Tensor) else torch.full((), side) for side in (x, n))
    dtype = torch.result_type(x, n)
    wide = dtype if dtype.is_floating_point else torch.get_default_dtype()
    value, degree = torch.broadcast_tensors(x.to(wide), n)
    held = degree.to(wide).abs() < 2.0**63
    return value.clone(), torch.where(held, degree, -1).to(torch.int64)


def _recur(x: Tensor, first: Tensor, degree: Tensor, begin: int, step: Recurrence) -> Tensor:
    """Returns the value of ``degree`` from those of degrees 0 (which is 1) and 1; k counts from ``begin``.

    Elements of a degree below 2 keep ``first``.
    """
    turns = degree.clamp(min=1) - 1  # one less than the smallest integer is the largest
    start = (torch.zeros((), dtype=torch.int64), torch.ones_like(x), first.clone())

    def more(turn: Tensor, p: Tensor, q: Tensor, x: Tensor, turns: Tensor) -> Tensor:
        return ((turn < turns) & ~torch.isnan(q)).any()

    def body(turn: Tensor, p: Tensor, q: Tensor, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        going = turn < turns
        value = step((turn + begin).to(x.dtype), x, q, p)
        return turn + 1, torch.where(going, q, p), torch.where(going, value, q)

    return run_while(more, body, start, (x, turns))[2]


def _ends(value: Tensor, first: Tensor, degree: Tensor) -> Tensor:
    """Puts in the values of degrees below 2: 0 for a negative one, 1, and ``first``."""
    value = torch.where(degree == 1, first, torch.where(degree == 0, 1.0, value).to(first.dtype))
    return torch.where(degree < 0, 0.0, value).to(first.dtype)


@dataclass(frozen=True)
class _Chebyshev:
    """One of the four kinds.

    Attributes:
        first: the value of degree 1.
        angle: (degree as float, acos x, x) -> the value inside of -1 to 1.
        at_one: (degree as float) -> the value at 1.
        at_minus_one: the same at -1, but for a sign that alternates with the degree.
        above: degrees above it are computed by angles; where x was shifted, ``above_shifted``.
    """

    first: Callable[[Tensor], Tensor]
    angle: Callable[[Tensor, Tensor, Tensor], Tensor]
    at_one: Callable[[Tensor], Tensor]
    at_minus_one: Callable[[Tensor], Tensor]
    above: int
    above_shifted: int


def _one(n: Tensor) -> Tensor:
    return torch.ones_like(n)


def _angle_u(n: Tensor, angle: Tensor, x: Tensor) -> Tensor:
    sine = torch.sin(angle)
    at_end = (n + 1) * torch.cos((n + 1) * angle) / x
    return torch.where(sine != 0, torch.sin((n + 1) * angle) / sine, at_end)


def _angle_v(n: Tensor, angle: Tensor, x: Tensor) -> Tensor:
    at_end = torch.where(torch.fmod(n, 2) == 0, n + n + 1, -(n + n + 1))
    return torch.where(torch.sin(angle / 2) != 1, torch.cos((n + 0.5) * angle) / torch.cos(angle / 2), at_end)


def _angle_w(n: Tensor, angle: Tensor, x: Tensor) -> Tensor:
    at_end = torch.where(x > 0, n + n + 1, torch.where(torch.fmod(n, 2) == 0, 1.0, -1.0))
    return torch.where(torch.cos(angle / 2) != 1, torch.sin((n + 0.5) * angle) / torch.sin(angle / 2), at_end)


_KINDS = {
    "t": _Chebyshev(lambda x: x, lambda n, angle, x: torch.cos(n * angle), _one, _one, 6, 6),
    "u": _Chebyshev(lambda x: x + x, _angle_u, lambda n: n + 1, lambda n: n + 1, 8, 6),
    "v": _Chebyshev(lambda x: x + x - 1, _angle_v, _one, lambda n: n + n + 1, 8, 6),
    "w": _Chebyshev(lambda x: x + x + 1, _angle_w, lambda n: n + n + 1, _one, 8, 4),
}


def _chebyshev(kind: _Chebyshev, *, shifted: bool) -> Callable[[Any, Any], Tensor]:
    def compute(x: Any, n: Any) -> Tensor:
        value, degree = _arguments(x, n)
        y = value + value - 1 if shifted else value
        first = kind.first(y)
        real = degree.to(y.dtype)
        by_angle = (degree > (kind.above_shifted if shifted else kind.above)) & (y.abs() < 1)
        at_end = value.abs() == 1 if not shifted else (value == 1) | (value == 0)
        recurring = torch.where(by_angle | at_end, 0, degree)
        found = _ends(_recur(y, first, recurring, 2, lambda k, x, q, p: (x + x) * q - p), first, degree)
        found = torch.where(by_angle, kind.angle(real, torch.acos(y.clamp(-1, 1)), y), found)
        sign = torch.where(torch.remainder(degree, 2) == 0, 1.0, -1.0)
        end = torch.where(y > 0, kind.at_one(real), sign * kind.at_minus_one(real))
        return torch.where(at_end & (degree >= 0), end, found).to(y.dtype)

    return compute


def _hermite(x: Any, n: Any) -> Tensor:
    value, degree = _arguments(x, n)
    first = value + value
    found = _limited(value, first, degree, lambda k, x, q, p: (x + x) * q - 2 * k * p)
    return _ends(found, first, degree)


def _hermite_of_probability(x: Any, n: Any) -> Tensor:
    value, degree = _arguments(x, n)
    return _ends(_limited(value, value, degree, lambda k, x, q, p: x * q - k * p), value, degree)


def _limited(x: Tensor, first: Tensor, degree: Tensor, step: Recurrence) -> Tensor:
    too_high = degree > _HERMITE_LIMIT.get(x.dtype, 1024)
    found = _recur(x, first, torch.where(too_high, 0, degree), 1, step)
    return torch.where(too_high, float("nan"), found).to(x.dtype)


def _laguerre(x: Any, n: Any) -> Tensor:
    value, degree = _arguments(x, n)
    first = 1 - value
    found = _recur(value, first, degree, 1, lambda k, x, q, p: ((k + k + (1 - x)) * q - k * p) / (k + 1))
    return torch.where((value == 0) & (degree >= 0), 1.0, _ends(found, first, degree)).to(value.dtype)


def _legendre(x: Any, n: Any) -> Tensor:
    value, degree = _arguments(x, n)
    found = _recur(value, value, degree, 1, lambda k, x, q, p: ((k + k + 1) * x * q - k * p) / (k + 1))
    sign = torch.where((value > 0) | (torch.remainder(degree, 2) == 0), 1.0, -1.0)
    at_end = (value.abs() == 1) & (degree >= 0)
    return torch.where(at_end, sign, _ends(found, value, degree)).to(value.dtype)


_BY_NAME: dict[str, Callable[[Any, Any], Tensor]] = {
    **{f"special_chebyshev_polynomial_{name}": _chebyshev(kind, shifted=False) for name, kind in _KINDS.items()},
    **{f"special_shifted_chebyshev_polynomial_{name}": _chebyshev(kind, shifted=True) for name, kind in _KINDS.items()},
    "special_hermite_polynomial_h": _hermite,
    "special_hermite_polynomial_he": _hermite_of_probability,
    "special_laguerre_polynomial_l": _laguerre,
    "special_legendre_polynomial_p": _legendre,
}

TABLE: dict[Any, Callable[..., Any]] = {
    getattr(getattr(aten, name), overload): function
    for name, function in _BY_NAME.items()
    for overload in ("default", "x_scalar", "n_scalar")
}
"""By overload."""
