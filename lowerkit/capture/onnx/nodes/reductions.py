"""Reductions: sums, products, means, norms, extremes and their places, running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from lowerkit.capture.onnx.nodes.node import Node, Rule
from lowerkit.capture.onnx.nodes.sizes import subtract, value_of
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    cast,
    concatenate,
    expand,
    scalar_tensor,
    size,
    sizes_of,
    slice_open,
    unary,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    TORCH_DTYPE_CODES,
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    int_list,
    tensor_info,
)

_Step = Callable[[ir.Value, Sequence[int], bool], ir.Value]


def _reduced(info: TensorInfo, axes: Sequence[int], keep_dims: bool) -> TensorInfo:
    return info.with_shape(
        [1 if axis in axes else extent for axis, extent in enumerate(info.shape) if keep_dims or axis not in axes]
    )


def _along(name: str, value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    """Builds ``torch.aten.<name>`` of (input, dims, keepdim)."""
    result = _reduced(tensor_info(value), axes, keep_dims).torch_type()
    return build(f"torch.aten.{name}", [value, int_list(axes), constant_bool(keep_dims)], [result])[0]


def summed(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    """Builds a sum in the element type of the operand."""
    info = tensor_info(value)
    dtype = constant_none() if info.is_float else constant_int(TORCH_DTYPE_CODES[info.dtype])
    result = _reduced(info, axes, keep_dims).torch_type()
    operands = [value, int_list(axes), constant_bool(keep_dims), dtype]
    return build("torch.aten.sum.dim_IntList", operands, [result])[0]


def _mean(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    result = _reduced(tensor_info(value), axes, keep_dims).torch_type()
    operands = [value, int_list(axes), constant_bool(keep_dims), constant_none()]
    return build("torch.aten.mean.dim", operands, [result])[0]


def _product(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    """PyTorch multiplies along one dim at a time."""
    for axis in sorted(axes, reverse=True):
        info = tensor_info(value)
        dtype = constant_none() if info.is_float else constant_int(TORCH_DTYPE_CODES[info.dtype])
        result = _reduced(info, [axis], keep_dims).torch_type()
        value = build(
            "torch.aten.prod.dim_int", [value, constant_int(axis), constant_bool(keep_dims), dtype], [result]
        )[0]
    return value


def _extreme(name: str, value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    if tensor_info(value).dtype == "i1":
        return _along("any.dims" if name == "amax" else "all.dims", value, axes, keep_dims)
    return _along(name, value, axes, keep_dims)


def _absolute_sum(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    return summed(unary("abs", value), axes, keep_dims)


def _square_sum(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    return summed(binary("mul", value, value), axes, keep_dims)


def _norm(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    return unary("sqrt", _square_sum(value, axes, keep_dims))


def _log_sum(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    return unary("log", summed(value, axes, keep_dims))


def _log_sum_of_exponentials(value: ir.Value, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    if any(tensor_info(value).shape[axis] == 0 for axis in axes):  # nothing is the largest of none
        return _log_sum(unary("exp", value), axes, keep_dims)
    return _along("logsumexp", value, axes, keep_dims)


def _over_axes(step: _Step, *, exact: bool = False, identity: bool = False, wide: bool = False) -> Rule:
    """A rule of a reduction.

    Args:
        step: builds it along at least one axis, or none.
        exact: integers are reduced as they are; else in float64, and cut.
        identity: along no axis nothing changes.
        wide: floats of 16 bits are reduced in float32.
    """

    def rule(node: Node) -> ir.Value:
        value, axes = node.operand(0), node.axes(1)
        info = tensor_info(value)
        if not axes and node.attribute("noop_with_empty_axes", 0):
            axes = []
        else:
            axes = [info.normalized_axis(axis) for axis in axes] if axes else list(range(info.rank))
        if identity and not axes:
            return value
        if info.dtype in LOW_PRECISION_FLOATS and wide:
            computed = "f32"
        else:
            computed = info.dtype if info.is_float or exact else "f64"
        if not axes:  # PyTorch takes none for all
            value = _unsqueezed(value)
            return cast(step(cast(value, computed), [0], False), info.dtype)
        return cast(step(cast(value, computed), axes, bool(node.attribute("keepdims", 1))), info.dtype)

    return rule


def _unsqueezed(value: ir.Value) -> ir.Value:
    info = tensor_info(value)
    result = info.with_shape([1, *info.shape]).torch_type()
    return build("torch.aten.unsqueeze", [value, constant_int(0)], [result])[0]


def flipped(value: ir.Value, axis: int) -> ir.Value:
    """Turns the order along an axis around."""
    return build("torch.aten.flip", [value, int_list([axis])], [value.type])[0]


def _place(name: str) -> Rule:
    """ArgMax, ArgMin: the first of equal elements, or the last."""

    def rule(node: Node) -> ir.Value:
        value = node.operand(0)
        info = tensor_info(value)
        if not info.rank:
            return scalar_tensor(0, "si64")
        axis, keep_dims = info.normalized_axis(node.attribute("axis", 0)), bool(node.attribute("keepdims", 1))
        last = bool(node.attribute("select_last_index", 0))
        value = flipped(value, axis) if last else value
        result = _reduced(info, [axis], keep_dims).with_dtype("si64").torch_type()
        found = build(f"torch.aten.{name}", [value, constant_int(axis), constant_bool(keep_dims)], [result])[0]
        if not last:
            return found
        end = value_of(subtract(size(value, axis), 1))
        return build("torch.aten.rsub.Scalar", [found, end, constant_int(1)], [result])[0]

    return rule


def _running(name: str, neutral: int) -> Rule:
    """CumSum, CumProd: exclusive ones are the inclusive ones moved by a place, as nothing can be taken out again."""

    def rule(node: Node) -> ir.Value:
        value, axis = node.operand(0), node.integers(1)[0]
        info = tensor_info(value)
        axis = info.normalized_axis(axis)
        backward = bool(node.attribute("reverse", 0))
        value = flipped(value, axis) if backward else value
        dtype = constant_none() if info.is_float else constant_int(TORCH_DTYPE_CODES[info.dtype])
        total = build(f"torch.aten.{name}", [value, constant_int(axis), dtype], [value.type])[0]
        if node.attribute("exclusive", 0):
            one = scalar_tensor(float(neutral) if info.is_float else neutral, info.dtype)
            first = expand(one, [1 if at == axis else extent for at, extent in enumerate(sizes_of(value))])
            end = subtract(size(value, axis), 1)
            total = concatenate([first, slice_open(total, axis, 0, end)], axis)
        return flipped(total, axis) if backward else total

    return rule


RULES: dict[str, Rule] = {
    "ArgMax": _place("argmax"),
    "ArgMin": _place("argmin"),
    "CumProd": _running("cumprod", 1),
    "CumSum": _running("cumsum", 0),
    "ReduceL1": _over_axes(_absolute_sum, exact=True),
    "ReduceL2": _over_axes(_norm, wide=True),
    "ReduceLogSum": _over_axes(_log_sum, wide=True),
    "ReduceLogSumExp": _over_axes(_log_sum_of_exponentials, wide=True),
    "ReduceMax": _over_axes(partial(_extreme, "amax"), exact=True, identity=True),
    "ReduceMean": _over_axes(_mean, identity=True),
    "ReduceMin": _over_axes(partial(_extreme, "amin"), exact=True, identity=True),
    "ReduceProd": _over_axes(_product, exact=True, identity=True),
    "ReduceSum": _over_axes(summed, exact=True, identity=True),
    "ReduceSumSquare": _over_axes(_square_sum, exact=True, wide=True),
}
