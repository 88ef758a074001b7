"""Tensors under another shape: what transposes, reshapes and slices make of sizes and strides.

A reshape of a tensor that does not lie in one piece keeps strides where each dim is split, or where dims that become
one follow one another; otherwise there is no such view.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.targets.cuda.triton.tensor import Tensor, row_major
from lowerkit.targets.plan import KernelExpr, expression, product

VIEWS = frozenset(
    {"tensor.cast", "tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice", "linalg.transpose"}
)
Sizes = tuple[KernelExpr, ...]


def view_of(op: ir.Operation, inner: Tensor) -> Tensor | None:
    """Returns the result of a view of ``inner``, which its operand is; None where strides cannot say it."""
    type_ = ir.RankedTensorType(op.results[0].type)
    match op.name:
        case "linalg.transpose":
            return _transposed(inner, list(ir.DenseI64ArrayAttr(op.attributes["permutation"])))
        case "tensor.cast":
            return inner
        case "tensor.expand_shape":
            return _expanded(inner, reassociation_of(op), _open_sizes(type_, reassociation_of(op), inner.sizes))
        case "tensor.collapse_shape":
            return _collapsed(inner, reassociation_of(op))
        case "tensor.extract_slice" if len(op.operands) == 1:
            return _slice(op, inner)
        case _:
            return None


def seen_before(op: ir.Operation, outer: Tensor) -> Tensor | None:
    """Returns where the operand of a view lies, if its result is ``outer``: what is stored through it."""
    type_ = ir.RankedTensorType(op.operands[0].type)
    match op.name:
        case "linalg.transpose":
            order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            return _transposed(outer, [order.index(axis) for axis in range(len(order))])
        case "tensor.cast":
            return outer
        case "tensor.collapse_shape":
            return _expanded(outer, reassociation_of(op), _open_sizes(type_, reassociation_of(op), outer.sizes))
        case "tensor.expand_shape":
            return _collapsed(outer, reassociation_of(op))
        case _:
            return None


def _with(tensor: Tensor, sizes: Sequence[KernelExpr], strides: Sequence[KernelExpr]) -> Tensor:
    return Tensor(tensor.pointer, tensor.element, tuple(sizes), tuple(strides), tensor.offset)


def _transposed(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return _with(tensor, [tensor.sizes[axis] for axis in order], [tensor.strides[axis] for axis in order])


def _open_sizes(type_: ir.RankedTensorType, groups: Sequence[Sequence[int]], whole: Sizes) -> Sizes | None:
    """The sizes of a tensor whose groups of dims have ``whole`` elements; None where two open ones share a group."""
    sizes: list[KernelExpr] = [0] * type_.rank
    for axes, total in zip(groups, whole, strict=True):
        open_ = [axis for axis in axes if type_.is_dynamic_dim(axis)]
        known = 1
        for axis in axes:
            if axis not in open_:
                sizes[axis] = type_.get_dim_size(axis)
                known *= type_.get_dim_size(axis)
        if len(open_) > 1 or (open_ and known == 0):
            return None
        if open_:
            sizes[open_[0]] = expression("floordiv", total, known)
    return tuple(sizes)


def _expanded(tensor: Tensor, groups: Sequence[Sequence[int]], sizes: Sizes | None) -> Tensor | None:
    if sizes is None:
        return None
    if tensor.offset == 0 and tensor.contiguous:
        return _with(tensor, sizes, row_major(sizes))
    strides: list[KernelExpr] = [0] * len(sizes)
    for axes, stride in zip(groups, tensor.strides, strict=True):
        reach = stride
        for axis in reversed(axes):
            strides[axis] = reach
            reach = expression("mul", reach, sizes[axis])
    return _with(tensor, sizes, strides)


def _collapsed(tensor: Tensor, groups: Sequence[Sequence[int]]) -> Tensor | None:
    sizes = [product([tensor.sizes[axis] for axis in axes]) for axes in groups]
    if tensor.offset == 0 and tensor.contiguous:
        return _with(tensor, sizes, row_major(sizes))
    strides: list[KernelExpr] = []
    for axes in groups:
        kept = [axis for axis in axes if tensor.sizes[axis] != 1]
        for outer, inner in itertools.pairwise(kept):
            if tensor.strides[outer] != expression("mul", tensor.strides[inner], tensor.sizes[inner]):
                return None
        strides.append(tensor.strides[kept[-1]] if kept else 1)
    return _with(tensor, sizes, strides)


def _slice(op: ir.Operation, inner: Tensor) -> Tensor | None:
    type_ = ir.RankedTensorType(op.results[0].type)
    starts, lengths, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{what}"])) for what in ("offsets", "sizes", "strides")
    )
    if len(lengths) != type_.rank:  # dims of one were dropped
        return None
    offset = inner.offset
    for start, stride in zip(starts, inner.strides, strict=True):
        offset = expression("add", offset, expression("mul", stride, start))
    strides = [expression("mul", stride, step) for step, stride in zip(steps, inner.strides, strict=True)]
    return Tensor(inner.pointer, inner.element, tuple(lengths), tuple(strides), offset)
