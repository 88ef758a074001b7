"""Decompositions that PyTorch does not have, or has with ops that we lack: all of ``lowerkit.capture.spelled_out``.

A function that cannot take its arguments returns ``NotImplemented``: the op stays, and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowerkit.capture.spelled_out import (
    bits,
    error_functions,
    functions,
    gamma,
    movement,
    orders,
    polynomials,
    reflections,
    scans,
    singular_values,
    triangles,
)

OWN_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **functions.TABLE,
    **orders.TABLE,
    **scans.TABLE,
    **bits.TABLE,
    **movement.TABLE,
    **gamma.TABLE,
    **error_functions.TABLE,
    **polynomials.TABLE,
    **triangles.TABLE,
    **reflections.TABLE,
    **singular_values.TABLE,
}
"""By overload."""
