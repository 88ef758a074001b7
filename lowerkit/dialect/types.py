"""Element types: numpy equivalents, sizes and classes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import ml_dtypes
import numpy as np

from lowerkit.dialect.shapes import element_count, fail
from lowerkit.mlir import ir

_NUMPY: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "si8": np.int8,
    "index": np.int64,
}

_floats_are_float64: ContextVar[bool] = ContextVar("floats_are_float64", default=False)


@contextmanager
def floats_as_float64(active: bool = True) -> Generator[None]:
    """Makes :func:`numpy_dtype` answer float64 for every float type: a module is then interpreted without rounding.

    For interpretation only; sizes in bytes are not to be asked for inside.
    """
    token = _floats_are_float64.set(active)
    try:
        yield
    finally:
        _floats_are_float64.reset(token)


def numpy_dtype(element: ir.Type) -> np.dtype[Any]:
    """Returns the numpy dtype of an element type; bf16 is ``ml_dtypes.bfloat16``, index is int64.

    Raises:
        VerifyError: no tensor of lk has this element type.
    """
    try:
        if _floats_are_float64.get() and is_float(element):
            return np.dtype(np.float64)
        return np.dtype(_NUMPY[str(element)])
    except KeyError:
        fail(f"element type {element} is not one of {', '.join(_NUMPY)}")


def element_type(dtype: Any) -> ir.Type:
    """Returns the element type of a numpy dtype, in the current context; the inverse of :func:`numpy_dtype`."""
    wanted = np.dtype(dtype)
    name = next((name for name, candidate in _NUMPY.items() if np.dtype(candidate) == wanted), None)
    if name is None:
        fail(f"numpy dtype {wanted} has no element type among {', '.join(_NUMPY)}")
    return ir.Type.parse(name)


def is_float(element: ir.Type) -> bool:
    """Whether the element type is one of f16, bf16, f32, f64."""
    return isinstance(element, (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type))


def is_integer(element: ir.Type) -> bool:
    """Whether the element type is an integer, i1 included."""
    return isinstance(element, ir.IntegerType)


def is_bool(element: ir.Type) -> bool:
    """Whether the element type is i1."""
    return isinstance(element, ir.IntegerType) and element.width == 1


def require_float(name: str, element: ir.Type) -> None:
    """Fails unless the operand's elements are floating point."""
    if not is_float(element):
        fail(f"operand {name} must have floating point elements, found {element}")


def require_same_element(left_name: str, left: ir.Type, right_name: str, right: ir.Type) -> None:
    """Fails unless two operands have one element type."""
    if left != right:
        fail(
            f"{left_name} has element type {left}, {right_name} has {right}: they must be equal",
            hint="convert one of them with arith.extf, arith.truncf or arith.sitofp first",
        )


def compute_type(element: ir.Type) -> ir.Type:
    """Returns the type in which sums over ``element`` are carried: f32 for f16 and bf16, i32 for narrow integers."""
    if isinstance(element, (ir.F16Type, ir.BF16Type)):
        return ir.F32Type.get(element.context)
    if is_integer(element) and element.width < 32:
        return ir.IntegerType.get_signless(32, element.context)
    return element


def element_bytes(element: ir.Type) -> int:
    """Returns the bytes of one element in memory; i1 takes one byte."""
    return numpy_dtype(element).itemsize


def tensor_bytes(kind: Any) -> int | None:
    """Returns the bytes of a tensor, or None if its shape is dynamic. Types that are not tensors count zero."""
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    count = element_count(kind.shape)
    return None if count is None else count * element_bytes(kind.element_type)


def signless(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array as the IR has it: integers without a sign, the same bits."""
    return array.view(array.dtype.name.removeprefix("u")) if array.dtype.kind == "u" else array
