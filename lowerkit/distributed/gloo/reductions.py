"""Reductions that gloo has not, or has otherwise than the dialect: of gathered values, in the order of the ranks.

gloo reduces f32, f64 and five types of integers, and what its minimum of a NaN is depends on the order. f16 and bf16
are summed in f32 and rounded once here, of bool a sum is or and a product is and, integers wrap, and NaN wins.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS

KNOWN = ("sum", "product", "min", "max")
"""The reductions that steps of compiled programs have."""

_FUNCTIONS: dict[str, np.ufunc] = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
_OF_BOOLEANS: dict[str, np.ufunc] = {
    "sum": np.logical_or, "product": np.logical_and, "min": np.logical_and, "max": np.logical_or,
}  # fmt: skip
_FLOATS, _INTEGERS = {"float32", "float64"}, {"int8", "uint8", "int32", "int64"}
_OPERATIONS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
}  # fmt: skip

_NUMBERS = tuple(np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES)
ITEM_BYTES = tuple(numbers.itemsize for numbers in _NUMBERS)


def of_gloo(dtype: int, reduction: int) -> tuple[torch.dtype, Any] | None:
    """Returns torch's dtype and reduction where gloo's is that of the dialect, else None."""
    name, kind = DTYPES[dtype], REDUCTIONS[reduction]
    if name in _INTEGERS or (name in _FLOATS and kind in ("sum", "product")):
        return getattr(torch, name), _OPERATIONS[kind]
    return None


def reduce_parts(parts: torch.Tensor, ranks: int, output: int, count: int, dtype: int, reduction: int) -> None:
    """Writes the reduction of parts that lie one behind the other.

    Args:
        parts: their bytes, by rank.
        ranks: how many there are.
        output: the address of ``count`` elements.
        count: elements of one part.
        dtype, reduction: numbers of the native interface.
    """
    numbers, kind = _NUMBERS[dtype], REDUCTIONS[reduction]
    given: NDArray[Any] = parts.numpy().view(numbers).reshape(ranks, count)
    memory: Any = (ctypes.c_uint8 * (count * numbers.itemsize)).from_address(output)
    target = np.frombuffer(memory, numbers)
    with np.errstate(all="ignore"):  # infinities and NaN are values
        if numbers == np.bool_:
            target[...] = _OF_BOOLEANS[kind].reduce(given, axis=0)
        elif DTYPES[dtype] in ("float16", "bfloat16"):
            target[...] = _FUNCTIONS[kind].reduce(given.astype(np.float32), axis=0).astype(numbers)
        else:
            target[...] = _FUNCTIONS[kind].reduce(given, axis=0, dtype=numbers)
