"""What kernels call of libdevice, for Triton's interpreter: computed in float64 and rounded once.

The interpreter runs no external functions. In the text that it is given this module stands where libdevice stood; the
functions bear the names that they have there. It is imported in the interpreter's process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

Array = np.ndarray[Any, Any]

_ERF = np.frompyfunc(math.erf, 1, 1)
_ERFC = np.frompyfunc(math.erfc, 1, 1)


def _with_python(function: Any) -> Callable[[Array], Array]:
    return lambda x: np.asarray(function(x)).astype(np.float64)


def _round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


FLOATS: dict[str, Callable[..., Array]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "cosh": np.cosh, "erf": _with_python(_ERF), "erfc": _with_python(_ERFC), "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "floor": np.floor, "fmod": np.fmod, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "pow": np.power, "rint": np.rint, "round": _round_half_away, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc,
}  # fmt: skip
"""Functions of floats, by name."""


def _bits(x: Array) -> Array:
    """The bits of integers, lowest first, along a last axis."""
    width = x.dtype.itemsize * 8
    unsigned = x.view(f"u{x.dtype.itemsize}")
    return (unsigned[..., None] >> np.arange(width, dtype=unsigned.dtype)) & 1


def _leading_zeros(x: Array) -> Array:
    bits = _bits(x)[..., ::-1]
    return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1])


def _first_set(x: Array) -> Array:
    bits = _bits(x)
    return np.where(bits.any(-1), bits.argmax(-1) + 1, 0)


INTEGERS: dict[str, Callable[[Array], Array]] = {
    "clz": _leading_zeros,
    "ffs": _first_set,
    "popc": lambda x: _bits(x).sum(-1),
}
"""Functions of the bits of integers, by name; they give 32 bits."""


def _tensor(data: Array, element: Any) -> Any:
    whole = any(size != 1 for size in data.shape) or data.ndim > 1
    return tl.tensor(TensorHandle(data, element), tl.block_type(element, list(data.shape)) if whole else element)


def _floats(function: Callable[..., Array]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        element = arguments[0].dtype
        own = arguments[0].handle.data.dtype
        wide = [argument.handle.data.astype(np.float64) for argument in arguments]
        with np.errstate(all="ignore"):
            return _tensor(np.asarray(function(*wide)).astype(own), element)

    return call


def _integers(function: Callable[[Array], Array]) -> Callable[[Any], Any]:
    return lambda argument: _tensor(function(argument.handle.data).astype(np.int32), tl.int32)


def __getattr__(name: str) -> Callable[..., Any]:
    """Returns a function by its name.

    Raises:
        NotImplementedError: there is none; the kernel cannot be interpreted.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    if name in FLOATS:
        return _floats(FLOATS[name])
    if name in INTEGERS:
        return _integers(INTEGERS[name])
    raise NotImplementedError(f"libdevice.{name} has no counterpart for the interpreter")
