"""Raises pools to ``lk.max_pool`` and ``lk.avg_pool``, global ones to ``lk.reduce``.

Ceil mode becomes padding at the high end. PyTorch drops a last window that would start in the high padding; the
padding added here just reaches the last window that stays.

An adaptive pool whose output divides its input is a plain pool. Any other has windows of different sizes: it is spelled
out, one dim after the other, as a slice and a reduction for each output index and a concatenation; a maximum and a
mean over a rectangle can be taken one dim at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import AvgPoolOp, MaxPoolOp, ReduceOp
from lowerkit.dialect.window import Window
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import concatenate, slice_axis, squeeze, unsqueeze
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    from_builtin,
    int_of,
    ints_of,
    is_none,
    like_result,
    spread,
    tensor_info,
    to_builtin,
)


def _windows(op: ir.Operation, spatial: int, dilation: Sequence[int], ceil: bool) -> list[Window]:
    """Returns the window of each spatial dim."""
    kernel = spread(ints_of(op.operands[1]), spatial)
    strides = ints_of(op.operands[2])
    stride = spread(strides, spatial) if strides else kernel
    padding = spread(ints_of(op.operands[3]), spatial)
    return [Window(*values, ceil) for values in zip(kernel, stride, padding, padding, dilation, strict=True)]


def _high_paddings(op: ir.Operation, windows: Sequence[Window]) -> list[int]:
    """Returns the padding at the high end of each spatial dim; refuses an open extent where ceil mode asks for it."""
    info = tensor_info(op.operands[0])
    first = info.rank - len(windows)
    return [
        window.high_padding(info.static_dim(axis)) if window.ceil else window.high
        for axis, window in enumerate(windows, first)
    ]


def _pooled(op: ir.Operation, spatial: int, build: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
    """Builds a pool of ``[N, C, spatial...]``; an input without a batch dim gets one for the time being."""
    value = op.operands[0]
    batched = tensor_info(value).rank == spatial + 2
    data = value if batched else unsqueeze(value, 0)
    result = build(to_builtin(data))
    info = tensor_info(op.results[0])
    pooled = from_builtin(result, info if batched else info.with_shape([1, *info.shape]))
    return like_result(pooled if batched else squeeze(pooled, 0), op)


def _max_pool(op: ir.Operation, spatial: int) -> list[ir.Value]:
    windows = _windows(op, spatial, spread(ints_of(op.operands[4]), spatial), bool_of(op.operands[5]))
    high = _high_paddings(op, windows)

    def build(data: ir.Value) -> ir.Value:
        return MaxPoolOp.build(
            data,
            kernel=[window.kernel for window in windows],
            strides=[window.stride for window in windows],
            padding=[side for window, top in zip(windows, high, strict=True) for side in (window.low, top)],
            dilation=[window.dilation for window in windows],
        )

    return _pooled(op, spatial, build)


def _raise_max_pool(spatial: int) -> Rule:
    """max_pool: (input, kernel_size, stride, padding, dilation, ceil_mode)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
        if len(op.results) == 2 and not is_unused(op.results[1]):
            raise RefusalError("the positions of the maxima are read")
        return [*_max_pool(op, spatial), *([None] * (len(op.results) - 1))]

    return rule


def _raise_avg_pool(spatial: int) -> Rule:
    """avg_pool: (input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        windows = _windows(op, spatial, [1] * spatial, bool_of(op.operands[4]))
        include_padding = bool_of(op.operands[5])
        # avg_pool1d has no divisor_override.
        divisor = int_of(op.operands[6]) if len(op.operands) > 6 and not is_none(op.operands[6]) else 0
        high = _high_paddings(op, windows)

        def build(data: ir.Value) -> ir.Value:
            return AvgPoolOp.build(
                data,
                kernel=[window.kernel for window in windows],
                strides=[window.stride for window in windows],
                padding=[side for window, top in zip(windows, high, strict=True) for side in (window.low, top)],
                count_include_pad=include_padding,
                divisor=divisor,
                ceil_extra=[top - window.high for window, top in zip(windows, high, strict=True)],
            )

        return _pooled(op, spatial, build)

    return rule


def _raise_adaptive(spatial: int, kind: str) -> Rule:
    """adaptive pools: (input, output_size); ``kind`` is max or mean."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
        if len(op.results) == 2 and not is_unused(op.results[1]):
            raise RefusalError("the positions of the maxima are read")
        rest: list[ir.Value | None] = [None] * (len(op.results) - 1)
        outputs = spread(ints_of(op.operands[1]), spatial)
        info = tensor_info(op.operands[0])
        if all(count == 1 for count in outputs):
            axes = list(range(info.rank - spatial, info.rank))
            reduced = ReduceOp.build(to_builtin(op.operands[0]), kind=kind, axes=axes, keep_dims=True)
            return [from_builtin(reduced, tensor_info(op.results[0])), *rest]
        sizes = [info.static_dim(info.rank - spatial + axis) for axis in range(spatial)]
        if all(size % count == 0 for size, count in zip(sizes, outputs, strict=True)):
            kernel = [size // count for size, count in zip(sizes, outputs, strict=True)]
            pool = MaxPoolOp if kind == "max" else AvgPoolOp
            return [*_pooled(op, spatial, lambda data: pool.build(data, kernel=kernel)), *rest]
        value = op.operands[0]
        for axis, (size, count) in enumerate(zip(sizes, outputs, strict=True), start=info.rank - spatial):
            value = _uneven_windows(value, axis, size, count, kind)
        return [*like_result(value, op), *rest]

    return rule


def _uneven_windows(value: ir.Value, axis: int, size: int, count: int, kind: str) -> ir.Value:
    """Reduces one dim to ``count`` windows ``floor(i * size / count) ... ceil((i + 1) * size / count)``."""
    if size == count:
        return value
    info = tensor_info(value)
    result = info.with_shape([*info.shape[:axis], 1, *info.shape[axis + 1 :]])
    pieces: list[ir.Value] = []
    for index in range(count):
        start, end = index * size // count, -(-((index + 1) * size) // count)
        piece = to_builtin(slice_axis(value, axis, start, end))
        pieces.append(from_builtin(ReduceOp.build(piece, kind=kind, axes=[axis], keep_dims=True), result))
    return concatenate(pieces, axis)


@dataclass(frozen=True)
class RaisePooling(TablePass):
    """Raises pools to lk ops. Precondition: none."""

    name: ClassVar[str] = "raise-pooling"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.max_pool{count}d": _raise_max_pool(count) for count in (1, 2, 3)},
        **{f"torch.aten.max_pool{count}d_with_indices": _raise_max_pool(count) for count in (1, 2, 3)},
        **{f"torch.aten.avg_pool{count}d": _raise_avg_pool(count) for count in (1, 2, 3)},
        **{f"torch.aten.adaptive_avg_pool{count}d": _raise_adaptive(count, "mean") for count in (1, 2, 3)},
        **{f"torch.aten._adaptive_avg_pool{count}d": _raise_adaptive(count, "mean") for count in (2, 3)},
        **{f"torch.aten.adaptive_max_pool{count}d": _raise_adaptive(count, "max") for count in (1, 2, 3)},
    }
