"""Products, quotients and roots of f64 rounded in a direction, number by number with fractions: slow, and rare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from lowerkit.runtimes.cuda.simulated.scalar_types import Array

Operation = Literal["mul", "fma", "div", "rcp", "sqrt"]

_EXACT: Mapping[str, Callable[..., Fraction]] = {
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
}


def exactly(operation: Operation, native: Callable[..., Array], mode: str, *operands: Array) -> Array:
    """Returns the result of f64 operands, rounded once.

    Args:
        operation: what is computed.
        native: the same to nearest, which decides where an operand or a divisor is special.
        mode: rz (toward zero), rm (down), rp (up), or odd: of the two neighbours of an inexact result the one with an
            odd last bit, which may be rounded once more to fewer bits.
        operands: f64, of shapes that broadcast.
    """
    arrays = [np.ascontiguousarray(each) for each in np.broadcast_arrays(*operands)]
    result = np.array(native(*arrays))
    plain = np.ones(result.shape, np.bool_)
    for array in arrays:
        plain &= np.isfinite(array)
    if operation in ("div", "rcp"):
        plain &= arrays[-1] != 0
    if operation == "sqrt":
        plain &= arrays[0] > 0
    for at in zip(*np.nonzero(plain), strict=True):
        values = [float(array[at]) for array in arrays]
        result[at] = _one(operation, values, float(result[at]), mode)
    return result


def _one(operation: Operation, values: list[float], near: float, mode: str) -> float:
    """Returns one result; ``near`` is the nearest one, with the sign that a zero has when rounding to nearest."""
    if operation == "sqrt":
        side = _sign(Fraction(values[0]) - Fraction(near) ** 2)
        return _stepped(near, side, 1, mode)
    exact = _EXACT[operation](*map(Fraction, values))
    if exact == 0:
        signs = {math.copysign(1, values[0]) * math.copysign(1, values[1]), math.copysign(1, values[-1])}
        return -0.0 if operation == "fma" and mode == "rm" and len(signs) == 2 else near
    # An infinite result lies beyond the exact one.
    side = -_sign(exact) if math.isinf(near) else _sign(exact - Fraction(near))
    return _stepped(near, side, _sign(exact), mode)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _stepped(near: float, side: int, sign: int, mode: str) -> float:
    """Returns the neighbour of the exact value that ``mode`` asks for; it lies on ``side`` of the nearest one."""
    if side == 0:
        return near
    if mode == "odd":
        inner = near if side == sign else math.nextafter(near, 0.0)
        return float(np.bitwise_or(np.float64(inner).view(np.uint64), np.uint64(1)).view(np.float64))
    wanted = {"rz": -sign, "rm": -1, "rp": 1}[mode]
    return near if side != wanted else math.nextafter(near, wanted * math.inf)
