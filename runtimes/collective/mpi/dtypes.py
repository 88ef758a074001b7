"""dtypes and reductions of the native interface as those of MPI, and what MPI has no operation for.

MPI has no bf16, and no f16 that every library knows: both travel as 16 bits and are reduced by operations of our own,
in f32, rounded once a step. What MPI's MIN and MAX make of a NaN differs between libraries, so that floats have
operations of our own for these too: NaN wins, as in the native engine. Sums of narrow integers saturate in some
releases of Open MPI on CPUs with AVX, where they must wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS
from lowerkit.runtimes.collective.mpi.library import load_mpi

_MPI_TYPES = (
    "FLOAT", "DOUBLE", "UINT16_T", "UINT16_T", "INT8_T", "INT16_T", "INT32_T", "INT64_T", "UINT8_T", "UINT16_T",
    "UINT32_T", "UINT64_T", "C_BOOL",
)  # fmt: skip
# As the native engine has it: a sum of bool is or, a product is and.
_OF_BOOLEANS = {
    "sum": "LOR", "product": "LAND", "min": "LAND", "max": "LOR", "band": "LAND", "bor": "LOR", "bxor": "LXOR",
}  # fmt: skip
_OF_NUMBERS = {
    "sum": "SUM", "avg": "SUM", "premul_sum": "SUM", "product": "PROD", "min": "MIN", "max": "MAX", "band": "BAND",
    "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
_UFUNCS: dict[str, Callable[..., Any]] = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
}  # fmt: skip
_HALVES = {"float16", "bfloat16"}
_NARROW = {"int8", "int16", "uint8", "uint16"}
_FLOATS = {"float32", "float64"} | _HALVES

ITEM_BYTES = tuple(np.dtype(getattr(ml_dtypes, name, name)).itemsize for name in DTYPES)
assert len(_MPI_TYPES) == len(DTYPES)


def is_float(dtype: int) -> bool:
    """Tells whether a native dtype is a float."""
    return DTYPES[dtype] in _FLOATS


def datatype(dtype: int) -> Any:
    """Returns the MPI type that elements travel as."""
    return getattr(load_mpi(), _MPI_TYPES[dtype])


def memory(address: int, count: int, dtype: int) -> Any:
    """Returns the memory of an array as a buffer."""
    return load_mpi().buffer.fromaddress(address, count * ITEM_BYTES[dtype])


def array(address: int, count: int, dtype: int) -> NDArray[Any]:
    """Returns an array over memory of the caller."""
    numbers: np.dtype[Any] = np.dtype(getattr(ml_dtypes, DTYPES[dtype], DTYPES[dtype]))
    return np.frombuffer(memory(address, count, dtype), numbers) if count else np.empty(0, numbers)


@cache
def operation(dtype: int, reduction: int) -> Any:
    """Returns the MPI operation for a reduction; those of our own are made once in a process."""
    name, mpi = DTYPES[dtype], load_mpi()
    if name == "bool":
        return getattr(mpi, _OF_BOOLEANS[REDUCTIONS[reduction]])
    theirs = _OF_NUMBERS[REDUCTIONS[reduction]]
    is_extreme = theirs in {"MIN", "MAX"}
    if name in _HALVES or (name in _FLOATS and is_extreme) or (name in _NARROW and theirs in {"SUM", "PROD"}):
        return mpi.Op.Create(_combining(name, _UFUNCS[theirs]), commute=True)
    return getattr(mpi, theirs)


def _combining(name: str, function: Callable[..., Any]) -> Callable[[Any, Any, Any], None]:
    numbers = np.dtype(getattr(ml_dtypes, name, name))

    def combine(source: Any, target: Any, _: Any) -> None:
        first, second = np.frombuffer(source, numbers), np.frombuffer(target, numbers)
        with np.errstate(all="ignore"):  # infinities and NaN are values
            if name in _HALVES:
                second[...] = function(first.astype(np.float32), second.astype(np.float32)).astype(numbers)
            else:
                function(first, second, out=second)

    return combine


def scaled(values: NDArray[Any], factor: float) -> NDArray[Any]:
    """Returns floats times a factor, computed in their own precision, f32 at least; what a PREMUL_SUM adds."""
    wide = values if values.dtype == np.float64 else values.astype(np.float32)
    with np.errstate(all="ignore"):
        return (wide * wide.dtype.type(factor)).astype(values.dtype)


def divide(values: NDArray[Any], divisor: int) -> None:
    """Divides in place, integers towards zero: what makes an average of a sum."""
    if values.dtype.kind in "iu":
        remainder = values % values.dtype.type(divisor)
        values //= values.dtype.type(divisor)
        values += ((remainder != 0) & (values < 0)).astype(values.dtype)
        return
    wide = values if values.dtype == np.float64 else values.astype(np.float32)
    with np.errstate(all="ignore"):
        values[...] = (wide / wide.dtype.type(divisor)).astype(values.dtype)
