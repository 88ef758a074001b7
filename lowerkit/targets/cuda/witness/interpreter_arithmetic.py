"""What Triton's interpreter computes otherwise than a card, brought to what the language says.

The interpreter keeps bf16 as its bits and takes them for integers in arithmetic, comparisons and products; it cuts
floats off where the language rounds them to nearest even; and it calls the function of a fold once for each element.
Here bf16 is widened for an op and rounded behind it, and a fold takes a whole slice at a time. Imported in the
interpreter's process alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from lowerkit.targets.cuda.triton.boundary import BOUNDARY, FENCE

Array = np.ndarray[Any, Any]
Handle = Any
"""A ``TensorHandle``."""

_BUILDER: Any = interpreter.InterpreterBuilder
_FOLDS: Any = interpreter.ReduceOps
_SCANS: Any = interpreter.ScanOps
_np_dtype: Any = interpreter._get_np_dtype  # pyright: ignore[reportPrivateUsage]


def install() -> None:
    """Replaces the methods; once in a process."""
    for name in ("binary_op", "unary_op"):
        setattr(_BUILDER, name, _widened(getattr(_BUILDER, name)))
    _BUILDER.create_fma = _widened_operands(_BUILDER.create_fma)
    _BUILDER.create_dot = _dot(_BUILDER.create_dot)
    _BUILDER.cast_impl = _cast
    _BUILDER.create_inline_asm = _boundary
    _BUILDER.create_fp_to_fp = lambda self, source, kind, _rounding: _cast(self, source, kind)
    _FOLDS.generic_reduce = _fold
    _SCANS.generic_scan = _scan


def counted(*bounds: Any) -> Iterator[Any]:
    """Yields what ``range`` does, as tensors: a kernel may ask of them what it asks of every other number.

    Args:
        bounds: of ``range``; tensors of one number, or ints.
    """
    wide = any(isinstance(bound, tl.tensor) and bound.dtype == tl.int64 for bound in bounds)
    element, kind = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for value in range(*(operator.index(bound) for bound in bounds)):
        yield tl.tensor(interpreter.TensorHandle(np.array([value], kind), element), element)


def _boundary(_self: Any, text: str, _constraints: str, values: list[Handle], *_options: Any) -> Any:
    if text not in (BOUNDARY, FENCE):
        raise NotImplementedError(f"the interpreter runs no inline assembly: {text}")
    return _Results(values)


class _Results(list[Handle]):
    """What an op of several results returns in the interpreter."""

    def get_result(self, number: int) -> Handle:
        """Returns one of them."""
        return self[number]


def _numbers(handle: Handle) -> Array:
    """The values of a handle, bf16 as such."""
    return handle.data.view(ml_dtypes.bfloat16) if handle.dtype.scalar == tl.bfloat16 else handle.data


def _handle(values: Array, element: Any) -> Handle:
    if element == tl.bfloat16:
        values = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return interpreter.TensorHandle(values, element)


def _wide(handle: Handle) -> Handle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle(_numbers(handle).astype(np.float32), tl.float32)


def _narrowed(handle: Handle, element: Any) -> Handle:
    """A result of an op of bf16, rounded; booleans stay what they are."""
    return handle if handle.data.dtype == np.bool_ else _handle(handle.data, element)


def _widened(right: Callable[..., Handle]) -> Callable[..., Handle]:
    """An op whose last argument is what numpy does."""

    def call(self: Any, *arguments: Any) -> Handle:
        *operands, function = arguments
        element = operands[0].dtype.scalar
        if element != tl.bfloat16:
            return right(self, *operands, function)
        return _narrowed(right(self, *map(_wide, operands), function), element)

    return call


def _widened_operands(right: Callable[..., Handle]) -> Callable[..., Handle]:
    def call(self: Any, *operands: Handle) -> Handle:
        element = operands[0].dtype.scalar
        found = right(self, *map(_wide, operands))
        return _narrowed(found, element) if element == tl.bfloat16 else found

    return call


def _dot(right: Callable[..., Handle]) -> Callable[..., Handle]:
    def call(self: Any, a: Handle, b: Handle, sums: Handle, *options: Any) -> Handle:
        return right(self, _wide(a), _wide(b), sums, *options)

    return call


def _cast(_self: Any, source: Handle, kind: Any) -> Handle:
    """A conversion as the language has it: to nearest even between floats, towards 0 to integers."""
    element = kind.scalar
    values = _numbers(source)
    with np.errstate(all="ignore"):
        if element == tl.bfloat16 or values.dtype == ml_dtypes.bfloat16:
            # Through f32, which holds every bf16 and f16; f64 and integers are rounded to it before, as cards do it.
            values = values.astype(np.float32)
        if element == tl.bfloat16:
            return _handle(values, element)
        return interpreter.TensorHandle(values.astype(_np_dtype(kind)), element)


def _slice(values: Array, axis: int, place: int, element: Any) -> Any:
    data = np.ascontiguousarray(np.take(values, place, axis))
    shaped = data.reshape(data.shape or (1,))
    return tl.tensor(interpreter.TensorHandle(shaped, element), tl.block_type(element, list(shaped.shape)))


def _combined(combine: Any, before: list[Any], after: list[Any]) -> list[Any]:
    found = combine.fn(*before, *after)
    return list(found) if isinstance(found, tuple) else [found]


def _fold(self: Any, inputs: Any) -> list[Any]:
    """A fold along an axis, first element first."""
    whole = self.axis is None
    inputs, axis = self.unravel(inputs, self.axis)
    shape = inputs[0].handle.data.shape
    sums = [_slice(each.handle.data, axis, 0, each.dtype) for each in inputs]
    for place in range(1, shape[axis]):
        after = [_slice(each.handle.data, axis, place, each.dtype) for each in inputs]
        sums = _combined(self.combine_fn, sums, after)
    kept = shape[:axis] + shape[axis + 1 :]
    results: list[Any] = []
    for each, total in zip(inputs, sums, strict=True):
        data: Any = total.handle.data.reshape(kept)
        if self.keep_dims:
            data = np.expand_dims(data, axis)
        elif whole:
            data = data.item()
        results.append(self.to_tensor(data, each.dtype))
    return results


def _scan(self: Any, inputs: Any) -> list[Any]:
    """All sums of a fold along an axis."""
    shape, axis = inputs[0].handle.data.shape, self.axis
    sums = [_slice(each.handle.data, axis, 0, each.dtype) for each in inputs]
    found = [[total.handle.data] for total in sums]
    for place in range(1, shape[axis]):
        after = [_slice(each.handle.data, axis, place, each.dtype) for each in inputs]
        sums = _combined(self.combine_fn, sums, after)
        for column, total in zip(found, sums, strict=True):
            column.append(total.handle.data)
    kept = shape[:axis] + shape[axis + 1 :]
    return [
        self.to_tensor(np.stack([data.reshape(kept) for data in column], axis), each.dtype)
        for column, each in zip(found, inputs, strict=True)
    ]
