"""Ops of the torch dialect that rules of ONNX nodes build, beside those of ``torch_build``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.nodes.elementwise import where
from lowerkit.capture.onnx.nodes.sizes import Size, value_of
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import binary_scalar, broadcast_shape, slice_axis
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    constant_number,
    from_builtin,
    int_list,
    tensor_info,
)
from lowerkit.program.weights import Array


def subtract(left: Size, right: Size) -> Size:
    """Returns the difference of two sizes."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return build("torch.aten.sub.int", [value_of(left), value_of(right)], [ir.Type.parse("!torch.int")])[0]


def quotient(left: Size, right: Size) -> Size:
    """Returns the quotient of two sizes, rounded down."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1:
        return left
    return build("torch.aten.floordiv.int", [value_of(left), value_of(right)], [ir.Type.parse("!torch.int")])[0]


def from_the_front(indices: ir.Value, extent: Size) -> ir.Value:
    """Counts negative indices from the end."""
    wrapped = binary_scalar("add", indices, extent)
    return where(binary_scalar("lt", indices, 0, "i1"), wrapped, indices)


def look_up(value: ir.Value, indices: Sequence[ir.Value | None]) -> ir.Value:
    """Indexes adjacent dims by tensors that broadcast, as ``value[:, i, j]`` does; None leaves a dim."""
    info = tensor_info(value)
    used = [axis for axis, item in enumerate(indices) if item is not None]
    shape = broadcast_shape(*(tensor_info(item).shape for item in indices if item is not None))
    items = [constant_none() if item is None else item for item in indices]
    listed = build("torch.prim.ListConstruct", items, [ir.Type.parse("!torch.list<optional<vtensor>>")])[0]
    result = info.with_shape([*info.shape[: used[0]], *shape, *info.shape[used[-1] + 1 :]])
    return build("torch.aten.index.Tensor", [value, listed], [result.torch_type()])[0]


def take(value: ir.Value, axis: int, positions: Array) -> ir.Value:
    """Takes constant positions of a dim of a known size; a slice where they are evenly spaced."""
    count = len(positions)
    step = int(positions[1] - positions[0]) if count > 1 else 1
    if count and step > 0 and (np.diff(positions) == step).all():
        return slice_axis(value, axis, int(positions[0]), int(positions[-1]) + 1, step)
    return look_up(value, [*[None] * axis, literal(positions, "si64")])


def cut(value: ir.Value, axis: int, start: Size, end: Size, step: int, extent: int | None) -> ir.Value:
    """Takes ``start:end:step`` of an open dim, as Python reads it; ``extent`` is what is known of the result's."""
    info = tensor_info(value)
    operands = [value, constant_int(axis), value_of(start), value_of(end), constant_int(step)]
    result = info.with_shape([*info.shape[:axis], extent, *info.shape[axis + 1 :]])
    return build("torch.aten.slice.Tensor", operands, [result.torch_type()])[0]


def pad(value: ir.Value, sides: Sequence[tuple[Size, Size]], fill: float | int | ir.Value = 0) -> ir.Value:
    """Pads each dim before and behind with a number, which has the type of the elements."""
    if not any(side != 0 for pair in sides for side in pair):
        return value
    info = tensor_info(value)
    shape = [
        extent + low + high if isinstance(low, int) and isinstance(high, int) and extent is not None else None
        for extent, (low, high) in zip(info.shape, sides, strict=True)
    ]
    if not isinstance(fill, ir.Value):
        fill = constant_number(float(fill) if info.is_float else int(fill))
    amounts = int_list([side for pair in reversed(sides) for side in pair])
    return build("torch.aten.constant_pad_nd", [value, amounts, fill], [info.with_shape(shape).torch_type()])[0]


def item(value: ir.Value) -> ir.Value:
    """Returns the only element of a tensor as a number."""
    kind = "float" if tensor_info(value).is_float else "int"
    return build("torch.aten.item", [value], [ir.Type.parse(f"!torch.{kind}")])[0]


def reduce(name: str, value: ir.Value, axes: Sequence[int], *, keep: bool = True) -> ir.Value:
    """Builds ``mean`` or ``sum`` along constant axes."""
    info = tensor_info(value)
    shape = [1 if axis in axes else extent for axis, extent in enumerate(info.shape) if keep or axis not in axes]
    operands = [value, int_list(axes), constant_bool(keep), constant_none()]
    spelled = {"mean": "mean.dim", "sum": "sum.dim_IntList"}[name]
    return build(f"torch.aten.{spelled}", operands, [info.with_shape(shape).torch_type()])[0]


def taken(value: ir.Value, dtype: str) -> ir.Value:
    """Returns what an lk op gives as a torch tensor."""
    built = ir.RankedTensorType(value.type)
    shape = [None if built.is_dynamic_dim(axis) else built.get_dim_size(axis) for axis in range(built.rank)]
    return from_builtin(value, TensorInfo(tuple(shape), dtype))
