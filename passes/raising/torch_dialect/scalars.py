"""Numbers that constants hold: of one element, as their type holds it."""

from __future__ import annotations

import math
import re

import numpy as np

from lowerkit.mlir import ir
from lowerkit.program.dtypes import NUMPY_DTYPES


def as_element(number: float | None, dtype: str) -> float | None:
    """Returns a number as an element of a type holds it: rounded, or cut to an integer."""
    if number is None:
        return None
    plain = NUMPY_DTYPES.get(re.sub(r"^[su]i", "i", dtype))
    if plain is None or (not math.isfinite(number) and np.issubdtype(plain, np.integer)):
        return None
    if np.issubdtype(plain, np.integer) and not -128 <= number <= 127:
        return number if number == int(number) and plain.itemsize == 8 else None
    with np.errstate(over="ignore"):
        return float(np.asarray(number, np.float64).astype(plain))


def splat(attribute: ir.Attribute) -> float | None:
    """Returns the value of a dense constant of which all elements are equal, or that has one element."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    if not attribute.is_splat:
        return None
    value = attribute.get_splat_value()
    if isinstance(value, (ir.FloatAttr, ir.IntegerAttr)):
        return float(value.value)
    if isinstance(value, ir.BoolAttr):
        return float(bool(value.value))
    return None
