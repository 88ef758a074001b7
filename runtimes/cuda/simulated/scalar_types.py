"""The types of PTX: their sizes, the numpy types that registers hold and that instructions compute with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DType = np.dtype[Any]

_INTEGER_BYTES = {f"{letter}{8 * size}": size for letter in "bus" for size in (1, 2, 4, 8)}
_FLOAT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "f32x2": 8}
# What a value takes of a register or of memory; a predicate is no bytes in PTX, and one here.
BYTES: Mapping[str, int] = {**_INTEGER_BYTES, **_FLOAT_BYTES, "u16x2": 4, "s16x2": 4, "pred": 1}
SIGNED = ("s16", "s32", "s64")
UNSIGNED = ("u16", "u32", "u64")
BITS = ("b16", "b32", "b64")

_STORED: Mapping[int, DType] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_COMPUTED: Mapping[str, DType] = {
    **{name: np.dtype(f"i{size}") for name, size in _INTEGER_BYTES.items() if name[0] == "s"},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_BOOL = np.dtype(np.bool_)


def unsigned(size: int) -> DType:
    """Returns the unsigned type of ``size`` bytes: 1, 2, 4 or 8."""
    return _STORED[size]


def stored(kind: str) -> DType:
    """Returns the type of a register of PTX type ``kind``: unsigned of its size, bool for a predicate."""
    return _BOOL if kind == "pred" else _STORED[BYTES[kind]]


def computed(kind: str) -> DType:
    """Returns the type as which an instruction reads ``kind``; bf16 and packed types are bits."""
    return _COMPUTED.get(kind) or stored(kind)


def is_float(kind: str) -> bool:
    """Returns whether ``kind`` is a float type, packed ones included."""
    return kind in _FLOAT_BYTES


def pairwise(half: Callable[..., Array], kind: str) -> Callable[..., Array]:
    """Returns an operation on pairs (``kind``: f16x2, bf16x2, u16x2, s16x2 or f32x2), from one on their halves."""
    view, whole = computed(kind.removesuffix("x2")), stored(kind)

    def function(*pairs: Array) -> Array:
        halves = [np.ascontiguousarray(pair)[..., None].view(view) for pair in np.broadcast_arrays(*pairs)]
        return np.ascontiguousarray(half(*halves)).view(whole)[..., 0]

    return function
