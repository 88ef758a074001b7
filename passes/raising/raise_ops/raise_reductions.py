"""Raises reductions to ``lk.reduce``; variances and norms are spelled out over it, in the input's own precision.

A variance is the mean of the squared deviations, carried in f32 as PyTorch's own kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import ReduceOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    from_ordered,
    full,
    ordered,
    product,
    size,
    squeeze,
    unary,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    RefusalError,
    TensorInfo,
    axes_of,
    bool_of,
    build,
    constant_float,
    constant_int,
    dtype_of_code,
    from_builtin,
    int_of,
    ints_of,
    is_none,
    like_result,
    number_of,
    tensor_info,
    to_builtin,
)

_SMALLEST_NORMAL = 2.0**-126
"""Of f32."""


def reduce(value: ir.Value, kind: str, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    """Builds ``lk.reduce`` on a torch tensor; one of rank 0 has an axis 0, as in PyTorch."""
    info = tensor_info(value)
    if not info.rank and axes:
        return reduce(view(value, [1]), kind, [0], False)
    if info.dtype == "i1":
        kind = {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(kind, kind)
    if kind in ("max", "min") and info.dtype.startswith("u"):
        return from_ordered(reduce(ordered(value), kind, axes, keep_dims), info.dtype)
    if kind in ("argmax", "argmin"):
        value = ordered(value)
    shape = [1 if axis in axes else size for axis, size in enumerate(info.shape) if keep_dims or axis not in axes]
    dtype = {"any": "i1", "all": "i1", "argmax": "si64", "argmin": "si64"}.get(kind, info.dtype)
    result = ReduceOp.build(to_builtin(value), kind=kind, axes=axes, keep_dims=keep_dims)
    return from_builtin(result, TensorInfo(tuple(shape), dtype))


def _accumulable(value: ir.Value, dtype: str | None) -> ir.Value:
    """Converts to the type that PyTorch sums in: the one asked for, else int64 for integers and bools."""
    info = tensor_info(value)
    return cast(value, dtype or (info.dtype if info.is_float else "si64"))


def _axes_and_keep(info: TensorInfo, arguments: Sequence[ir.Value]) -> tuple[Sequence[int], bool]:
    """Reads (dim, keepdim); without them all dims are reduced."""
    return (axes_of(arguments[0], info), bool_of(arguments[1])) if arguments else (range(info.rank), False)


def _raise_total(kind: str) -> Rule:
    """sum, mean, prod: (input[, dim, keepdim], dtype)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value, *along, dtype = op.operands
        value = _accumulable(value, dtype_of_code(dtype))
        return like_result(reduce(value, kind, *_axes_and_keep(tensor_info(value), along)), op)

    return rule


def _raise_extreme(kind: str) -> Rule:
    """amax, amin: (input, dim, keepdim); max, min of all elements: (input)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value, *along = op.operands
        return like_result(reduce(value, kind, *_axes_and_keep(tensor_info(value), along)), op)

    return rule


def _raise_extreme_with_position(kind: str) -> Rule:
    """max.dim, min.dim: (input, dim, keepdim) -> (values, indices)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
        value, keep_dims = op.operands[0], bool_of(op.operands[2])
        axis = tensor_info(value).normalized_axis(int_of(op.operands[1]))
        values = reduce(value, kind, [axis], keep_dims)
        if is_unused(op.results[1]):
            return [*like_result(values, op), None]
        return [*like_result(values, op), *like_result(reduce(value, f"arg{kind}", [axis], keep_dims), op, 1)]

    return rule


def _raise_position(kind: str) -> Rule:
    """argmax, argmin: (input, dim, keepdim); dim None stands for the flattened tensor."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value = op.operands[0]
        info = tensor_info(value)
        if not is_none(op.operands[1]):
            axis = info.normalized_axis(int_of(op.operands[1]))
            return like_result(reduce(value, kind, [axis], bool_of(op.operands[2])), op)
        position = reduce(_flat(value), kind, [0], False)
        for _ in range(info.rank if bool_of(op.operands[2]) else 0):
            position = unsqueeze(position, 0)
        return like_result(position, op)

    return rule


def _flat(value: ir.Value) -> ir.Value:
    info = tensor_info(value)
    if None not in info.shape:
        return view(value, [math.prod(info.static_shape())])
    bounds = [constant_int(0), constant_int(-1)]
    return build("torch.aten.flatten.using_ints", [value, *bounds], [info.with_shape([None]).torch_type()])[0]


def _raise_logical(kind: str) -> Rule:
    """any, all: (input), (input, dim, keepdim) or (input, dims, keepdim)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value = op.operands[0]
        info = tensor_info(value)
        if len(op.operands) == 1:
            axes, keep_dims = list(range(info.rank)), False
        else:
            axes, keep_dims = axes_of(op.operands[1], info), bool_of(op.operands[2])
            if str(op.operands[1].type) == "!torch.list<int>" and not ints_of(op.operands[1]):
                axes = []  # here no dims are none, unlike in sums
        if info.dtype != "i1":
            value = binary_scalar("ne", value, 0, "i1")
        reduced = reduce(value, kind, axes, keep_dims) if axes or not info.rank else value
        # PyTorch answers uint8 with uint8 and everything else with bool.
        return like_result(cast(reduced, tensor_info(op.results[0]).dtype), op)

    return rule


# Variances.


def _variance(value: ir.Value, axes: Sequence[int], correction: float, keep_dims: bool) -> tuple[ir.Value, ir.Value]:
    """Returns variance and mean."""
    info = tensor_info(value)
    wide = cast(value, "f32") if info.dtype in LOW_PRECISION_FLOATS else value
    mean = reduce(wide, "mean", axes, True)
    deviation = binary("sub", wide, mean)
    squares = reduce(binary("mul", deviation, deviation), "sum", axes, keep_dims)
    # Nothing left to divide by gives NaN or infinity, as in PyTorch.
    count = product([size(value, axis) for axis in axes]) if info.rank else 1
    if isinstance(count, int):
        variance = binary_scalar("div", squares, max(float(count - correction), 0.0))
    else:
        left = binary_scalar("sub", full(count, [], tensor_info(wide).dtype), correction)
        left = build("torch.aten.clamp_min", [left, constant_float(0.0)], [left.type])[0]
        variance = binary("div", squares, left)
    if not keep_dims and info.rank:
        for axis in reversed(axes):
            mean = squeeze(mean, axis)
    return cast(variance, info.dtype), cast(mean, info.dtype)


def _variance_arguments(op: ir.Operation) -> tuple[list[int], float, bool]:
    """Returns axes, correction and keepdim of any overload of var, std and var_mean."""
    info = tensor_info(op.operands[0])
    if len(op.operands) == 2:  # (input, unbiased)
        return list(range(info.rank)), float(bool_of(op.operands[1])), False
    axes = axes_of(op.operands[1], info)
    # (input, dim, unbiased, keepdim) or (input, dim, correction, keepdim); a correction of None means 1.
    correction = 1.0 if is_none(op.operands[2]) else float(number_of(op.operands[2]))
    return axes, correction, bool_of(op.operands[3])


def _raise_variance(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    axes, correction, keep_dims = _variance_arguments(op)
    return like_result(_variance(op.operands[0], axes, correction, keep_dims)[0], op)


def _raise_deviation(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Of a value in units of its largest distance from the mean: the squares of 1e20 and of 1e-30 have no f32."""
    axes, correction, keep_dims = _variance_arguments(op)
    value = op.operands[0]
    info = tensor_info(value)
    wide = cast(value, "f32") if info.dtype in LOW_PRECISION_FLOATS else value
    if info.dtype == "f64" or any(info.shape[axis] in (None, 0) for axis in axes) or info.rank == 0:
        return like_result(unary("sqrt", _variance(value, axes, correction, keep_dims)[0]), op)
    distance = binary("sub", wide, reduce(wide, "mean", axes, True))
    # The smallest normal number is lost in any unit but that of values which are all the same.
    unit = binary_scalar("add", reduce(unary("abs", distance), "max", axes, True), _SMALLEST_NORMAL)
    deviation = unary("sqrt", _variance(binary("div", distance, unit), axes, correction, True)[0])
    deviation = binary("mul", deviation, unit)
    if not keep_dims:
        for axis in sorted(axes, reverse=True):
            deviation = squeeze(deviation, axis)
    return like_result(cast(deviation, info.dtype), op)


def _raise_variance_and_mean(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    axes, correction, keep_dims = _variance_arguments(op)
    variance, mean = _variance(op.operands[0], axes, correction, keep_dims)
    return [*like_result(variance, op), *like_result(mean, op, 1)]


# Vector norms.


def _norm(value: ir.Value, order: float, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    info = tensor_info(value)
    if not info.is_float:
        raise RefusalError(f"a norm of {info}")
    wide = cast(value, "f32") if info.dtype in LOW_PRECISION_FLOATS else value
    if order == 2:
        result = unary("sqrt", reduce(binary("mul", wide, wide), "sum", axes, keep_dims))
    elif order in (math.inf, -math.inf):
        result = reduce(unary("abs", wide), "max" if order > 0 else "min", axes, keep_dims)
    elif order == 1:
        result = reduce(unary("abs", wide), "sum", axes, keep_dims)
    elif order == 0:
        nonzero = cast(binary_scalar("ne", wide, 0, "i1"), tensor_info(wide).dtype)
        result = reduce(nonzero, "sum", axes, keep_dims)
    else:
        powers = binary_scalar("pow", unary("abs", wide), order)
        result = binary_scalar("pow", reduce(powers, "sum", axes, keep_dims), 1.0 / order)
    return cast(result, info.dtype)


def _raise_vector_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """linalg_vector_norm: (input, ord, dim, keepdim, dtype)."""
    value, order, dims, keep_dims, dtype = op.operands
    value = cast(value, dtype_of_code(dtype) or tensor_info(value).dtype)
    axes = axes_of(dims, tensor_info(value))
    return like_result(_norm(value, float(number_of(order)), axes, bool_of(keep_dims)), op)


def _raise_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """norm.ScalarOpt_dim: (input, p, dim, keepdim), and norm.Scalar without the last two; p None means 2."""
    value, order, *along = op.operands
    power = 2.0 if is_none(order) else float(number_of(order))
    return like_result(_norm(value, power, *_axes_and_keep(tensor_info(value), along)), op)


def _raise_logsumexp(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """logsumexp: (input, dim, keepdim); the maximum is taken out first, as PyTorch does, unless it is infinite."""
    value, keep_dims = cast(op.operands[0], tensor_info(op.results[0]).dtype), bool_of(op.operands[2])
    info = tensor_info(value)
    axes = axes_of(op.operands[1], info)
    wide = cast(value, "f32") if info.dtype in LOW_PRECISION_FLOATS else value
    largest = reduce(wide, "max", axes, True)
    infinite = binary_scalar("eq", unary("abs", largest), math.inf, "i1")
    # An infinite maximum must not be subtracted: inf - inf is NaN.
    shift = build("torch.aten.where.ScalarSelf", [infinite, constant_float(0.0), largest], [largest.type])[0]
    exponentials = unary("exp", binary("sub", wide, shift))
    logarithm = unary("log", reduce(exponentials, "sum", axes, keep_dims))
    if not keep_dims and info.rank:
        for axis in reversed(axes):
            shift = squeeze(shift, axis)
    return like_result(cast(binary("add", logarithm, shift), info.dtype), op)


@dataclass(frozen=True)
class RaiseReductions(TablePass):
    """Raises reductions to ``lk.reduce``. Precondition: none."""

    name: ClassVar[str] = "raise-reductions"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _raise_total("sum") for name in ("sum", "sum.dim_IntList")},
        **{f"torch.aten.{name}": _raise_total("mean") for name in ("mean", "mean.dim")},
        **{f"torch.aten.{name}": _raise_total("prod") for name in ("prod", "prod.dim_int")},
        **{f"torch.aten.{name}": _raise_extreme("max") for name in ("amax", "max")},
        **{f"torch.aten.{name}": _raise_extreme("min") for name in ("amin", "min")},
        "torch.aten.max.dim": _raise_extreme_with_position("max"),
        "torch.aten.min.dim": _raise_extreme_with_position("min"),
        "torch.aten.argmax": _raise_position("argmax"),
        "torch.aten.argmin": _raise_position("argmin"),
        **{f"torch.aten.any{suffix}": _raise_logical("any") for suffix in ("", ".dim", ".dims")},
        **{f"torch.aten.all{suffix}": _raise_logical("all") for suffix in ("", ".dim", ".dims")},
        **{f"torch.aten.var{suffix}": _raise_variance for suffix in ("", ".dim", ".correction")},
        **{f"torch.aten.std{suffix}": _raise_deviation for suffix in ("", ".dim", ".correction")},
        **{f"torch.aten.var_mean{suffix}": _raise_variance_and_mean for suffix in ("", ".dim", ".correction")},
        "torch.aten.linalg_vector_norm": _raise_vector_norm,
        "torch.aten.norm.ScalarOpt_dim": _raise_norm,
        "torch.aten.logsumexp": _raise_logsumexp,
    }
