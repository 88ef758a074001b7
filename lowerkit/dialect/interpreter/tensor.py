"""Meaning of tensor ops in numpy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.dialect.shapes import is_dynamic
from lowerkit.dialect.types import numpy_dtype
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

_BF16 = np.dtype(ml_dtypes.bfloat16)

Lookup = Callable[[ir.Value], Any]


def evaluate(op: ir.Operation, get: Lookup) -> list[Any] | None:
    """Returns the results of a tensor op without a body, or None if this is not one that is known."""
    handler = _HANDLERS.get(op.name)
    return None if handler is None else [handler(op, get)]


def constant(attribute: ir.Attribute) -> Any:
    """Returns the value of a constant: a numpy scalar, or a tensor."""
    if isinstance(attribute, ir.BoolAttr):
        return np.bool_(attribute.value)
    if isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr)):
        return np.asarray(attribute.value).astype(numpy_dtype(attribute.type))[()]
    kind = attribute.type
    dtype = numpy_dtype(kind.element_type)
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return np.full(list(kind.shape), attribute.get_splat_value().value).astype(dtype)
    if isinstance(attribute, (ir.DenseFPElementsAttr, ir.DenseIntElementsAttr)):
        if dtype == _BF16:
            return _read_bf16(str(attribute)).reshape(kind.shape)
        return np.array(attribute).reshape(kind.shape).astype(dtype)
    raise VerifyError("LK3002", f"the interpreter cannot read a constant of {type(attribute).__name__}")


def _read_bf16(text: str) -> Array:
    """Reads ``dense<...>`` text: the bindings give no access to bf16 elements."""
    body = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(":"))]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), np.uint16).view(_BF16)
    items = re.findall(r"[^\[\],\s]+", body)
    # NaN and infinity are printed as their bits.
    return np.array([_bf16_bits(item) if item.startswith("0x") else float(item) for item in items]).astype(_BF16)


def _bf16_bits(item: str) -> float:
    return float(np.array([int(item, 16)], np.uint16).view(_BF16)[0])


def mixed(op: ir.Operation, get: Lookup, static: str, values: Iterator[ir.Value]) -> list[int]:
    """Returns offsets, sizes or strides: static ones from the attribute, the others from the next operands."""
    return [int(get(next(values))) if is_dynamic(number) else number for number in list(op.attributes[static])]


def _slices(op: ir.Operation, get: Lookup, first: int) -> tuple[tuple[slice, ...], list[int]]:
    """Returns the place of an extract_slice or insert_slice, and the sizes."""
    values = iter(list(op.operands)[first:])
    offsets = mixed(op, get, "static_offsets", values)
    sizes = mixed(op, get, "static_sizes", values)
    strides = mixed(op, get, "static_strides", values)
    place = tuple(
        slice(offset, offset + (size - 1) * stride + 1 if size else offset, stride)
        for offset, size, stride in zip(offsets, sizes, strides, strict=True)
    )
    return place, sizes


def _extract_slice(op: ir.Operation, get: Lookup) -> Array:
    place, sizes = _slices(op, get, 1)
    source = get(op.operands[0])
    _check_inside(op, place, source.shape)
    return source[place].reshape(_reduced_shape(op.results[0].type, sizes))


def _insert_slice(op: ir.Operation, get: Lookup) -> Array:
    place, sizes = _slices(op, get, 2)
    result = np.array(get(op.operands[1]))
    _check_inside(op, place, result.shape)
    result[place] = get(op.operands[0]).reshape(sizes)
    return result


def _check_inside(op: ir.Operation, place: Sequence[slice], shape: Sequence[int]) -> None:
    if any(part.start < 0 or part.stop > size for part, size in zip(place, shape, strict=True)):
        raise VerifyError("LK3002", f"{op.name} reaches outside of a tensor of shape {tuple(shape)}: {list(place)}")


def _reduced_shape(kind: ir.RankedTensorType, sizes: Sequence[int]) -> list[int]:
    """Drops unit sizes so that the others fit the result type; which ones does not matter to the order of elements."""
    for kept in itertools.combinations(range(len(sizes)), kind.rank):
        fits = all(is_dynamic(wanted) or wanted == sizes[axis] for wanted, axis in zip(kind.shape, kept, strict=True))
        if fits and all(size == 1 for axis, size in enumerate(sizes) if axis not in kept):
            return [sizes[axis] for axis in kept]
    raise VerifyError("LK3002", f"a slice of sizes {list(sizes)} does not fit {kind}")


def _expand_shape(op: ir.Operation, get: Lookup) -> Array:
    sizes = mixed(op, get, "static_output_shape", iter(list(op.operands)[1:]))
    return get(op.operands[0]).reshape(sizes)


def _collapse_shape(op: ir.Operation, get: Lookup) -> Array:
    source = get(op.operands[0])
    groups = [[index.value for index in group] for group in op.attributes["reassociation"]]
    shape = [int(np.prod([source.shape[index] for index in group], dtype=np.int64)) for group in groups]
    return source.reshape(shape)


def _reshape(op: ir.Operation, get: Lookup) -> Array:
    return get(op.operands[0]).reshape([int(size) for size in get(op.operands[1])])


def _empty(op: ir.Operation, get: Lookup) -> Array:
    kind = op.results[0].type
    values = iter(list(op.operands))
    shape = [int(get(next(values))) if is_dynamic(size) else size for size in kind.shape]
    # Zeros rather than what is in memory: reading an uninitialized tensor must not depend on the weather.
    return np.zeros(shape, numpy_dtype(kind.element_type))


def _insert(op: ir.Operation, get: Lookup) -> Array:
    scalar, destination, *indices = op.operands
    result = np.array(get(destination))
    result[tuple(int(get(index)) for index in indices)] = get(scalar)
    return result


def _extract(op: ir.Operation, get: Lookup) -> Any:
    """One element, or one for each element of the index arrays inside a vectorized body."""
    source, *indices = op.operands
    array = get(source)
    places = [np.asarray(get(index)) for index in indices]
    for axis, place in enumerate(places):
        if place.size and (int(place.min()) < 0 or int(place.max()) >= array.shape[axis]):
            raise VerifyError(
                "LK3002",
                f"tensor.extract reads position {int(place.min())} to {int(place.max())} of a dimension of size "
                f"{array.shape[axis]}",
            )
    return array[tuple(places)]


def _cast(op: ir.Operation, get: Lookup) -> Array:
    array, kind = get(op.operands[0]), op.results[0].type
    if isinstance(kind, ir.RankedTensorType) and not all(
        is_dynamic(wanted) or wanted == size for wanted, size in zip(kind.shape, array.shape, strict=True)
    ):
        raise VerifyError("LK3002", f"tensor.cast to {kind} of a tensor of shape {array.shape}")
    return array


def _concat(op: ir.Operation, get: Lookup) -> Array:
    return np.concatenate([get(operand) for operand in op.operands], axis=op.attributes["dim"].value)


def _from_elements(op: ir.Operation, get: Lookup) -> Array:
    kind = op.results[0].type
    return np.array([get(operand) for operand in op.operands], numpy_dtype(kind.element_type)).reshape(kind.shape)


def _splat(op: ir.Operation, get: Lookup) -> Array:
    value, *sizes = op.operands
    kind, values = op.results[0].type, iter(sizes)
    shape = [int(get(next(values))) if is_dynamic(size) else size for size in kind.shape]
    return np.full(shape, get(value), numpy_dtype(kind.element_type))


def _dim(op: ir.Operation, get: Lookup) -> Any:
    return np.int64(get(op.operands[0]).shape[int(get(op.operands[1]))])


_HANDLERS: dict[str, Callable[[ir.Operation, Lookup], Any]] = {
    "tensor.cast": _cast,
    "tensor.collapse_shape": _collapse_shape,
    "tensor.concat": _concat,
    "tensor.dim": _dim,
    "tensor.empty": _empty,
    "tensor.expand_shape": _expand_shape,
    "tensor.extract": _extract,
    "tensor.extract_slice": _extract_slice,
    "tensor.from_elements": _from_elements,
    "tensor.insert": _insert,
    "tensor.insert_slice": _insert_slice,
    "tensor.rank": lambda op, get: np.int64(get(op.operands[0]).ndim),
    "tensor.reshape": _reshape,
    "tensor.splat": _splat,
    "tensor.bitcast": lambda op, get: get(op.operands[0]).view(numpy_dtype(op.results[0].type.element_type)),
}
