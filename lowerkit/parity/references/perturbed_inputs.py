"""Inputs moved by one unit in the last place: what comes of them is as right an answer as that to the inputs given.

Whole numbers stay: they are flags, masks and counts more often than not, and ``(1 - mask) * -1e9`` is no rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


def perturbed_inputs(inputs: Sequence[Array], generator: np.random.Generator) -> list[Array]:
    """Returns the inputs with each floating value one unit in the last place up, down, or as it was."""
    return [_moved(np.asarray(array), generator) for array in inputs]


def _moved(array: Array, generator: np.random.Generator) -> Array:
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        return array
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        fixed = ~np.isfinite(wide) | (wide == np.round(wide))
        up, down = (np.nextafter(array, array.dtype.type(limit)) for limit in (np.inf, -np.inf))
    choice = generator.integers(-1, 2, array.shape)
    found = np.where(choice > 0, up, np.where(choice < 0, down, array))
    return np.where(fixed, array, found).astype(array.dtype)
