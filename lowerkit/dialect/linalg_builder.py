"""Tensor-level building blocks of the lowerings to linalg, at the current insertion point.

A size is an int where it is static and an index value where it is dynamic, so that arithmetic on static shapes
leaves no ops behind. Types are derived from sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.shapes import DYNAMIC, is_dynamic, tensor_type
from lowerkit.mlir import arith, ir, linalg, tensor

Size: TypeAlias = int | ir.Value
Body: TypeAlias = Callable[..., ir.Value | Sequence[ir.Value]]

_STRIDE_ONE = 1


# Sizes.


def constant_index(number: int) -> ir.Value:
    """Returns an index constant."""
    return arith.ConstantOp(ir.IndexType.get(), ir.IntegerAttr.get(ir.IndexType.get(), number)).result


def as_index(size: Size) -> ir.Value:
    """Returns a size as an index value."""
    return constant_index(size) if isinstance(size, int) else size


def size_of(value: ir.Value, axis: int) -> Size:
    """Returns one dimension of a tensor."""
    dimension = value.type.shape[axis]
    return tensor.DimOp(value, constant_index(axis)).result if is_dynamic(dimension) else dimension


def sizes_of(value: ir.Value) -> list[Size]:
    """Returns all dimensions of a tensor."""
    return [size_of(value, axis) for axis in range(value.type.rank)]


def add_sizes(left: Size, right: Size) -> Size:
    """Returns ``left + right``."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return arith.AddIOp(as_index(left), as_index(right)).result


def multiply_sizes(left: Size, right: Size) -> Size:
    """Returns ``left * right``."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return arith.MulIOp(as_index(left), as_index(right)).result


def divide_size(size: Size, divisor: int) -> Size:
    """Returns ``size // divisor`` for a size that is not negative."""
    if isinstance(size, int):
        return size // divisor
    return size if divisor == 1 else arith.FloorDivSIOp(size, constant_index(divisor)).result


def product(sizes: Sequence[Size]) -> Size:
    """Returns the product of sizes."""
    result: Size = 1
    for size in sizes:
        result = size if result == 1 else multiply_sizes(result, size)
    return result


def static_shape(sizes: Sequence[Size]) -> list[int]:
    """Returns sizes as the shape of a type, with DYNAMIC for values."""
    return [size if isinstance(size, int) else DYNAMIC for size in sizes]


def dynamic_values(sizes: Sequence[Size]) -> list[ir.Value]:
    """Returns the index values among sizes."""
    return [size for size in sizes if not isinstance(size, int)]


# Tensors.


def empty(sizes: Sequence[Size], element: ir.Type) -> ir.Value:
    """Returns an uninitialized tensor."""
    return ir.Operation.create(
        "tensor.empty",
        results=[tensor_type(static_shape(sizes), element)],
        operands=dynamic_values(sizes),
    ).result


def filled(sizes: Sequence[Size], value: ir.Value) -> ir.Value:
    """Returns a tensor with ``value`` everywhere."""
    destination = empty(sizes, value.type)
    return linalg.fill(value, outs=[destination])


def cast(value: ir.Value, target: ir.Type) -> ir.Value:
    """Returns ``value`` with more or less static knowledge of its shape."""
    return value if value.type == target else tensor.CastOp(target, value).result


def extract(source: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
    """Returns one element of a tensor."""
    return tensor.ExtractOp(source, indices).result


def insert(element: ir.Value, destination: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
    """Returns the tensor with one element replaced."""
    return tensor.InsertOp(element, destination, indices).result


def pad(source: ir.Value, low: Sequence[int], high: Sequence[int], value: ir.Value) -> ir.Value:
    """Returns the tensor with ``value`` around it; the tensor itself where nothing is added."""
    if not any(low) and not any(high):
        return source
    shape = [
        DYNAMIC if is_dynamic(size) else size + before + after
        for size, before, after in zip(source.type.shape, low, high, strict=True)
    ]
    op = tensor.PadOp(tensor_type(shape, source.type.element_type), source, [], [], list(low), list(high))
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(shape))
    with ir.InsertionPoint(block):
        tensor.YieldOp(value)
    return op.result


def extract_slice(source: ir.Value, offsets: Sequence[int], sizes: Sequence[Size]) -> ir.Value:
    """Returns a contiguous part of a tensor, of the same rank."""
    shape = static_shape(sizes)
    steps = [_STRIDE_ONE] * len(shape)
    kind = tensor_type(shape, source.type.element_type)
    return tensor.ExtractSliceOp(kind, source, [], dynamic_values(sizes), [], list(offsets), shape, steps).result


def insert_slice(source: ir.Value, destination: ir.Value, offsets: Sequence[int], strides: Sequence[int]) -> ir.Value:
    """Returns ``destination`` with ``source`` written over it at the offsets, every stride-th position."""
    sizes = sizes_of(source)
    return tensor.InsertSliceOp(
        source, destination, [], dynamic_values(sizes), [], list(offsets), static_shape(sizes), list(strides)
    ).result


def expand_dimension(source: ir.Value, axis: int, parts: Sequence[Size]) -> ir.Value:
    """Splits one dimension into several; at most one of the parts is dynamic."""
    # The op insists that the dimension is static exactly where all its parts are.
    joined = math.prod(part for part in parts if isinstance(part, int)) if not dynamic_values(parts) else DYNAMIC
    shape = list(source.type.shape)
    source = cast(source, tensor_type([*shape[:axis], joined, *shape[axis + 1 :]], source.type.element_type))
    sizes = sizes_of(source)
    result = [*sizes[:axis], *parts, *sizes[axis + 1 :]]
    groups = _split_groups(len(sizes), axis, len(parts))
    kind = tensor_type(static_shape(result), source.type.element_type)
    return tensor.ExpandShapeOp(kind, source, groups, dynamic_values(result), static_shape(result)).result


def expand_scalar(source: ir.Value) -> ir.Value:
    """Returns a tensor of rank 0 as one of shape ``[1]``."""
    kind = tensor_type([1], source.type.element_type)
    return tensor.ExpandShapeOp(kind, source, ir.ArrayAttr.get([]), [], [1]).result


def collapse_dimensions(source: ir.Value, axis: int, count: int) -> ir.Value:
    """Joins ``count`` dimensions from ``axis`` on into one."""
    shape = source.type.shape
    joined = 1
    for size in shape[axis : axis + count]:
        joined = DYNAMIC if is_dynamic(size) or is_dynamic(joined) else joined * size
    kind = tensor_type([*shape[:axis], joined, *shape[axis + count :]], source.type.element_type)
    groups = _split_groups(len(shape) - count + 1, axis, count)
    return tensor.CollapseShapeOp(kind, source, groups).result


def _split_groups(rank: int, axis: int, count: int) -> ir.ArrayAttr:
    """Reassociation of ``rank`` dimensions of which ``axis`` stands for ``count`` of the larger shape."""
    groups: list[list[int]] = []
    position = 0
    for dimension in range(rank):
        width = count if dimension == axis else 1
        groups.append(list(range(position, position + width)))
        position += width
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, i) for i in group]) for group in groups])


# Structured ops.


def loop(position: int) -> ir.AffineExpr:
    """Returns the affine expression of one loop of a generic op."""
    return ir.AffineExpr.get_dim(position)


def loops(positions: Sequence[int]) -> list[ir.AffineExpr]:
    """Returns the affine expressions of some loops."""
    return [loop(position) for position in positions]


def affine_constant(number: int) -> ir.AffineExpr:
    """Returns a constant affine expression."""
    return ir.AffineExpr.get_constant(number)


def generic(
    inputs: Sequence[tuple[ir.Value, Sequence[ir.AffineExpr]]],
    outputs: Sequence[tuple[ir.Value, Sequence[ir.AffineExpr]]],
    iterators: Sequence[str],
    body: Body,
) -> list[ir.Value]:
    """Builds ``linalg.generic``.

    Args:
        inputs: each tensor with its index expressions.
        outputs: each destination with its index expressions.
        iterators: ``parallel`` or ``reduction`` for each loop.
        body: takes one scalar for each input and output, returns what is yielded.
    """
    operands = [*inputs, *outputs]
    maps = [ir.AffineMap.get(len(iterators), 0, list(expressions)) for _, expressions in operands]
    op = linalg.GenericOp(
        [value.type for value, _ in outputs],
        [value for value, _ in inputs],
        [value for value, _ in outputs],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in iterators]),
    )
    block = op.regions[0].blocks.append(*[value.type.element_type for value, _ in operands])
    with ir.InsertionPoint(block):
        yielded = body(*block.arguments)
        linalg.YieldOp([yielded] if isinstance(yielded, ir.Value) else list(yielded))
    return list(op.operation.results)


def map_elements(
    inputs: Sequence[tuple[ir.Value, Sequence[ir.AffineExpr]]], sizes: Sequence[Size], element: ir.Type, body: Body
) -> ir.Value:
    """Computes each element of a new tensor on its own; ``body`` takes one scalar for each input."""
    destination = empty(sizes, element)
    rank = len(sizes)

    def drop_destination(*scalars: ir.Value) -> ir.Value | Sequence[ir.Value]:
        return body(*scalars[:-1])

    return generic(inputs, [(destination, loops(range(rank)))], ["parallel"] * rank, drop_destination)[0]


def convert_elements(source: ir.Value, element: ir.Type) -> ir.Value:
    """Converts each element; the tensor itself where nothing changes."""
    if source.type.element_type == element:
        return source
    expressions = loops(range(source.type.rank))
    return map_elements([(source, expressions)], sizes_of(source), element, lambda x: scalar.convert(x, element))


def reduce_rows(
    source: ir.Value, axes: Sequence[int], initial: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Reduces ``axes`` away; ``combine`` takes (element, accumulator), the accumulator is of ``initial``'s type."""
    rank = source.type.rank
    kept = [axis for axis in range(rank) if axis not in axes]
    sizes = sizes_of(source)
    destination = filled([sizes[axis] for axis in kept], initial)
    iterators = ["reduction" if axis in axes else "parallel" for axis in range(rank)]
    return generic([(source, loops(range(rank)))], [(destination, loops(kept))], iterators, combine)[0]


def loop_index(position: int) -> ir.Value:
    """Returns the current iteration of a loop, inside a generic body."""
    return linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), position)).result
