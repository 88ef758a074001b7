"""Torch ops that rules build: one function per op, with its shape rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TORCH_DTYPE_CODES,
    RefusalError,
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    constant_number,
    from_builtin,
    int_list,
    tensor_info,
    to_builtin,
)


def broadcast_shape(*shapes: Sequence[int | None]) -> tuple[int | None, ...]:
    """Returns the shape of an elementwise op over ``shapes``; an unknown dim meets 1 as an unknown one."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result: list[int | None] = []
    for sizes in zip(*padded, strict=True):
        known = {size for size in sizes if size is not None and size != 1}
        if len(known) > 1:
            raise RefusalError(f"shapes {shapes} do not broadcast")
        result.append(known.pop() if known else (None if None in sizes else 1))
    return tuple(result)


def binary(name: str, lhs: ir.Value, rhs: ir.Value, dtype: str | None = None) -> ir.Value:
    """Builds ``torch.aten.<name>.Tensor`` (``add`` and ``sub`` with alpha 1); the result has ``dtype`` or lhs's."""
    left, right = tensor_info(lhs), tensor_info(rhs)
    result = left.with_shape(broadcast_shape(left.shape, right.shape)).with_dtype(dtype or left.dtype)
    extra = [constant_int(1)] if name in ("add", "sub") else []
    spelled = name if name in ("maximum", "minimum") else f"{name}.Tensor"
    return build(f"torch.aten.{spelled}", [lhs, rhs, *extra], [result.torch_type()])[0]


def binary_scalar(name: str, lhs: ir.Value, number: float | int | ir.Value, dtype: str | None = None) -> ir.Value:
    """Builds ``torch.aten.<name>.Scalar`` (``pow.Tensor_Scalar``); the result has ``dtype`` or lhs's."""
    info = tensor_info(lhs)
    number = number if isinstance(number, ir.Value) else constant_number(number)
    extra = [constant_int(1)] if name in ("add", "sub", "rsub") else []
    spelled = "pow.Tensor_Scalar" if name == "pow" else f"{name}.Scalar"
    result = info.with_dtype(dtype or info.dtype).torch_type()
    return build(f"torch.aten.{spelled}", [lhs, number, *extra], [result])[0]


def unary(name: str, value: ir.Value, dtype: str | None = None) -> ir.Value:
    """Builds ``torch.aten.<name>`` of one tensor; the result has ``dtype`` or the operand's."""
    info = tensor_info(value)
    return build(f"torch.aten.{name}", [value], [info.with_dtype(dtype or info.dtype).torch_type()])[0]


def cast(value: ir.Value, dtype: str) -> ir.Value:
    """Converts a tensor to another element type; nothing if it has it already."""
    info = tensor_info(value)
    if info.dtype == dtype:
        return value
    operands = [value, constant_int(TORCH_DTYPE_CODES[dtype]), constant_bool(False), constant_bool(False)]
    return build("torch.aten.to.dtype", [*operands, constant_none()], [info.with_dtype(dtype).torch_type()])[0]


_HOLDERS = {"i1": "si16", "ui8": "si16", "ui16": "si32", "ui32": "si64", "ui64": "si64"}
_HALF = -(1 << 63)
"""Half of what 64 bits tell apart: added to all, it turns the order without a sign into the one with it."""


def signed(value: ir.Value) -> ir.Value:
    """Converts bools and unsigned integers to signed ones that hold them, of 64 bits those of the same bits.

    Any other tensor is returned as it is. lk ops of integers read a sign; what wraps around wraps alike in the lower
    bits.
    """
    return cast(value, _HOLDERS.get(tensor_info(value).dtype, tensor_info(value).dtype))


def ordered(value: ir.Value) -> ir.Value:
    """As :func:`signed`, in an order that is that of the elements: unsigned ones of 64 bits are moved by half."""
    found = signed(value)
    return binary_scalar("add", found, _HALF) if tensor_info(value).dtype == "ui64" else found


def from_ordered(value: ir.Value, dtype: str) -> ir.Value:
    """Takes back what :func:`ordered` did to elements of ``dtype``."""
    return cast(binary_scalar("add", value, _HALF) if dtype == "ui64" else value, dtype)


def full(number: float | int | ir.Value, sizes: Sequence[int | ir.Value], dtype: str) -> ir.Value:
    """A tensor of one number, which may be computed."""
    if not isinstance(number, ir.Value):
        number = constant_number(bool(number) if dtype == "i1" else number)
    operands = [int_list(sizes), number, constant_int(TORCH_DTYPE_CODES[dtype])]
    kind = TensorInfo(tuple(size if isinstance(size, int) else None for size in sizes), dtype).torch_type()
    return build("torch.aten.full", [*operands, constant_none(), constant_none(), constant_bool(False)], [kind])[0]


def scalar_tensor(number: float | int, dtype: str) -> ir.Value:
    """A number as a tensor of rank 0."""
    return full(number, [], dtype)


def permute(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Permutes dims; nothing for the identity."""
    info = tensor_info(value)
    if list(order) == list(range(info.rank)):
        return value
    result = info.with_shape([info.shape[axis] for axis in order]).torch_type()
    return build("torch.aten.permute", [value, int_list(order)], [result])[0]


def unsqueeze(value: ir.Value, axis: int) -> ir.Value:
    """Inserts a dim of size 1 before ``axis``."""
    info = tensor_info(value)
    shape = [*info.shape[:axis], 1, *info.shape[axis:]]
    return build("torch.aten.unsqueeze", [value, constant_int(axis)], [info.with_shape(shape).torch_type()])[0]


def squeeze(value: ir.Value, axis: int) -> ir.Value:
    """Drops the dim ``axis`` of size 1."""
    info = tensor_info(value)
    shape = [*info.shape[:axis], *info.shape[axis + 1 :]]
    return build("torch.aten.squeeze.dim", [value, constant_int(axis)], [info.with_shape(shape).torch_type()])[0]


def size(value: ir.Value, axis: int) -> int | ir.Value:
    """Returns the size of a dim: a number where it is static, else the int value that reads it."""
    static = tensor_info(value).shape[axis]
    if static is not None:
        return static
    return build("torch.aten.size.int", [value, constant_int(axis)], [ir.Type.parse("!torch.int")])[0]


def sizes_of(value: ir.Value) -> list[int | ir.Value]:
    """Returns the size of each dim, as :func:`size` does."""
    return [size(value, axis) for axis in range(tensor_info(value).rank)]


def common_sizes(values: Sequence[ir.Value]) -> list[int | ir.Value]:
    """Returns the sizes of what ``values`` broadcast to.

    Of an open dim it is the size of the first that has it: where another's is open too, it is the same, as a guard
    says.
    """
    shape = broadcast_shape(*(tensor_info(value).shape for value in values))
    return [_open_size(values, axis - len(shape)) if known is None else known for axis, known in enumerate(shape)]


def _open_size(values: Sequence[ir.Value], axis: int) -> int | ir.Value:
    for value in values:
        info = tensor_info(value)
        if -axis <= info.rank and info.shape[axis] is None:
            return size(value, axis + info.rank)
    raise AssertionError("an open dim of the common shape is open in one of the tensors")


def product(sizes: Sequence[int | ir.Value]) -> int | ir.Value:
    """Returns the product of numbers and int values."""
    number = math.prod(item for item in sizes if isinstance(item, int))
    total: int | ir.Value = number
    for item in sizes:
        if not isinstance(item, int):
            factor = constant_int(total) if isinstance(total, int) else total
            total = build("torch.aten.mul.int", [item, factor], [item.type])[0]
    return total


def add_sizes(left: int | ir.Value, right: int | ir.Value) -> int | ir.Value:
    """Returns the sum of two numbers or int values."""
    if isinstance(left, int):
        if isinstance(right, int):
            return left + right
        left, right = right, left
    if right == 0:
        return left
    addend = constant_int(right) if isinstance(right, int) else right
    return build("torch.aten.add.int", [left, addend], [ir.Type.parse("!torch.int")])[0]


def view(value: ir.Value, sizes: Sequence[int | ir.Value]) -> ir.Value:
    """Reshapes to ``sizes`` (numbers, or int values for dynamic dims); nothing if the shape is the same and static."""
    info = tensor_info(value)
    shape = [item if isinstance(item, int) else None for item in sizes]
    if None not in shape and shape == list(info.shape):
        return value
    return build("torch.aten.view", [value, int_list(sizes)], [info.with_shape(shape).torch_type()])[0]


def expand(value: ir.Value, sizes: Sequence[int | ir.Value]) -> ir.Value:
    """Broadcasts to ``sizes``."""
    info = tensor_info(value)
    shape = [item if isinstance(item, int) else None for item in sizes]
    result = info.with_shape(shape).torch_type()
    return build("torch.aten.broadcast_to", [value, int_list(sizes)], [result])[0]


def slice_axis(value: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
    """Takes ``start:end:step`` (all non-negative, within a static dim) along ``axis``."""
    info = tensor_info(value)
    shape = list(info.shape)
    shape[axis] = max(0, -(-(end - start) // step))
    operands = [value, constant_int(axis), constant_int(start), constant_int(end), constant_int(step)]
    return build("torch.aten.slice.Tensor", operands, [info.with_shape(shape).torch_type()])[0]


def slice_open(value: ir.Value, axis: int, start: int | ir.Value, end: int | ir.Value) -> ir.Value:
    """Takes ``start:end`` along ``axis``, no further than its end; the size of the result is known at run time."""
    info = tensor_info(value)
    shape = list(info.shape)
    shape[axis] = None
    bounds = [constant_int(bound) if isinstance(bound, int) else bound for bound in (start, end)]
    operands = [value, constant_int(axis), *bounds, constant_int(1)]
    return build("torch.aten.slice.Tensor", operands, [info.with_shape(shape).torch_type()])[0]


def concatenate(values: Sequence[ir.Value], axis: int) -> ir.Value:
    """Concatenates along ``axis``."""
    if len(values) == 1:
        return values[0]
    infos = [tensor_info(value) for value in values]
    sizes = [info.shape[axis] for info in infos]
    shape = list(infos[0].shape)
    shape[axis] = None if None in sizes else sum(size for size in sizes if size is not None)
    # The list type must name the element type of each item, or the generic one where they differ.
    types = {str(value.type) for value in values}
    item_type = types.pop().removeprefix("!torch.") if len(types) == 1 else "vtensor"
    items = build("torch.prim.ListConstruct", values, [ir.Type.parse(f"!torch.list<{item_type}>")])[0]
    return build("torch.aten.cat", [items, constant_int(axis)], [infos[0].with_shape(shape).torch_type()])[0]


def bias_along(bias: ir.Value, axis: int, rank: int) -> ir.Value:
    """Views a vector as a rank-``rank`` tensor that varies along ``axis`` only (trailing ones, no leading ones)."""
    for _ in range(rank - 1 - axis):
        bias = unsqueeze(bias, tensor_info(bias).rank)
    return bias


def of_type_of(result: ir.Value, value: ir.Value) -> ir.Value:
    """Refines or forgets static dims of ``value``, right behind what makes it, so that it may stand for ``result``.

    A replacement may know more of its shape than what it replaces, or less.
    """
    if value.type == result.type:
        return value
    owner = value.owner
    at_begin = isinstance(owner, ir.Block)
    place = ir.InsertionPoint.at_block_begin(owner) if at_begin else ir.InsertionPoint.after(owner.operation)
    with value.context, place, value.location:
        return from_builtin(to_builtin(value), tensor_info(result))
