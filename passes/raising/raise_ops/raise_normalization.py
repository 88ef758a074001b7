"""Raises layer, rms, group and instance norm to their lk ops, and spells batch norm out for inference.

Batch norm at inference is ``x * scale + shift`` with one scale and shift for each channel. Both are computed from the
weights alone, as small tensors, in PyTorch's own order (``scale = weight / sqrt(variance + epsilon)``, ``shift =
bias - mean * scale``), so that constant folding and the folding into a convolution find them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lowerkit.dialect import GroupNormOp, LayerNormOp, RmsNormOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import bias_along, binary, binary_scalar, cast, unary
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    RefusalError,
    bool_of,
    build,
    from_builtin,
    int_of,
    ints_of,
    is_none,
    like_result,
    number_of,
    tensor_info,
    to_builtin,
)

_MACHINE_EPSILON = {"f16": 2.0**-23, "bf16": 2.0**-23, "f32": 2.0**-23, "f64": 2.0**-52}
"""That of the type that PyTorch computes in: 16-bit floats are widened first."""


def _optional(value: ir.Value) -> ir.Value | None:
    return None if is_none(value) else to_builtin(value)


def _row_rank(value: ir.Value, normalized_shape: ir.Value) -> int:
    """Returns how many dims are normalized, having compared their sizes with those of the input, where it has any."""
    info, sizes = tensor_info(value), ints_of(normalized_shape)
    found = info.shape[info.rank - len(sizes) :]
    fits = [size >= 0 and extent in (None, size) for extent, size in zip(found, sizes, strict=False)]
    if len(found) != len(sizes) or not all(fits):
        raise RefusalError(f"normalized shape {sizes} against {info}")
    return len(sizes)


def _rows(value: ir.Value, normalized_shape: ir.Value) -> ir.Value:
    """The input, its normalized dims of the sizes that the op states: guards hold open ones to them."""
    info, sizes = tensor_info(value), ints_of(normalized_shape)
    rows = to_builtin(value)
    known = replace(info, shape=(*info.shape[: info.rank - len(sizes)], *sizes)).builtin_type()
    return rows if rows.type == known else build("tensor.cast", [rows], [known])[0]


def _layer_norm(op: ir.Operation) -> ir.Value:
    value, shape, scale, bias, epsilon = list(op.operands)[:5]
    rank = _row_rank(value, shape)
    result = LayerNormOp.build(
        _rows(value, shape),
        _optional(scale),
        _optional(bias),
        normalized_rank=rank,
        epsilon=float(number_of(epsilon)),
    )
    return from_builtin(result, tensor_info(op.results[0]))


def _raise_layer_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """layer_norm: (input, normalized_shape, weight, bias, eps, cudnn_enable)."""
    return [_layer_norm(op)]


def _raise_native_layer_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """native_layer_norm: (input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)."""
    if not (is_unused(op.results[1]) and is_unused(op.results[2])):
        raise RefusalError("mean or reciprocal deviation of the norm is read")
    return [_layer_norm(op), None, None]


def _raise_rms_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """rms_norm: (input, normalized_shape, weight, eps); eps None stands for the machine epsilon."""
    value, shape, scale, epsilon = op.operands
    info = tensor_info(value)
    if not info.is_float:
        raise RefusalError(f"an rms norm of {info}")
    result = RmsNormOp.build(
        to_builtin(value),
        _optional(scale),
        normalized_rank=_row_rank(value, shape),
        epsilon=_MACHINE_EPSILON[info.dtype] if is_none(epsilon) else float(number_of(epsilon)),
    )
    return [from_builtin(result, tensor_info(op.results[0]))]


def _group_norm(value: ir.Value, scale: ir.Value, bias: ir.Value, groups: int, epsilon: ir.Value) -> ir.Value:
    result = GroupNormOp.build(
        to_builtin(value), _optional(scale), _optional(bias), groups=groups, epsilon=float(number_of(epsilon))
    )
    return from_builtin(result, tensor_info(value))


def _raise_group_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """group_norm: (input, num_groups, weight, bias, eps, cudnn_enabled)."""
    value, groups, scale, bias, epsilon = list(op.operands)[:5]
    return like_result(_group_norm(value, scale, bias, int_of(groups), epsilon), op)


def _raise_native_group_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """native_group_norm: (input, weight, bias, N, C, HxW, group, eps) -> (output, mean, rstd)."""
    value, scale, bias, _, _, _, groups, epsilon = op.operands
    if not (is_unused(op.results[1]) and is_unused(op.results[2])):
        raise RefusalError("mean or reciprocal deviation of the norm is read")
    return [*like_result(_group_norm(value, scale, bias, int_of(groups), epsilon), op), None, None]


def _raise_instance_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """instance_norm: (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn)."""
    value, scale, bias, mean, variance, use_input_stats, _, epsilon, _ = op.operands
    if not bool_of(use_input_stats):
        return _inference_batch_norm(op, value, scale, bias, mean, variance, epsilon)
    # One group for each channel normalizes each channel of each sample on its own.
    channels = tensor_info(value).static_dim(1)
    return like_result(_group_norm(value, scale, bias, channels, epsilon), op)


def _inference_batch_norm(
    op: ir.Operation,
    value: ir.Value,
    weight: ir.Value,
    bias: ir.Value,
    mean: ir.Value,
    variance: ir.Value,
    epsilon: ir.Value,
) -> list[ir.Value]:
    info = tensor_info(value)
    if is_none(mean) or is_none(variance):
        raise RefusalError("a batch norm without running statistics")
    # PyTorch keeps scale and shift in f32 for 16-bit data.
    wide = "f32" if info.dtype in LOW_PRECISION_FLOATS else info.dtype
    scale = unary("rsqrt", binary_scalar("add", cast(variance, wide), float(number_of(epsilon))))
    if not is_none(weight):
        scale = binary("mul", cast(weight, wide), scale)
    shift = binary("mul", cast(mean, wide), scale)
    shift = unary("neg", shift) if is_none(bias) else binary("sub", cast(bias, wide), shift)
    scaled = binary("mul", cast(value, wide), bias_along(scale, 1, info.rank))
    shifted = binary("add", scaled, bias_along(shift, 1, info.rank))
    return like_result(cast(shifted, info.dtype), op)


def _raise_batch_norm(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """batch_norm: (input, weight, bias, running_mean, running_var, training, momentum, eps, ...)."""
    value, weight, bias, mean, variance, training, _, epsilon = list(op.operands)[:8]
    if bool_of(training):
        raise RefusalError("a batch norm in training mode: call model.eval() before capture")
    results = _inference_batch_norm(op, value, weight, bias, mean, variance, epsilon)
    return [*results, *([None] * (len(op.results) - 1))]


def _raise_batch_norm_no_training(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """_native_batch_norm_legit_no_training: (input, weight, bias, running_mean, running_var, momentum, eps)."""
    value, weight, bias, mean, variance, _, epsilon = op.operands
    if not all(is_unused(result) for result in list(op.results)[1:]):
        raise RefusalError("a saved statistic of the norm is read")
    return [*_inference_batch_norm(op, value, weight, bias, mean, variance, epsilon), None, None]


@dataclass(frozen=True)
class RaiseNormalization(TablePass):
    """Raises norms to ``lk.layer_norm``, ``lk.rms_norm`` and ``lk.group_norm``; spells batch norm out.

    Precondition: none.
    """

    name: ClassVar[str] = "raise-normalization"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.layer_norm": _raise_layer_norm,
        "torch.aten.native_layer_norm": _raise_native_layer_norm,
        "torch.aten.rms_norm": _raise_rms_norm,
        "torch.aten.group_norm": _raise_group_norm,
        "torch.aten.native_group_norm": _raise_native_group_norm,
        "torch.aten.instance_norm": _raise_instance_norm,
        "torch.aten.batch_norm": _raise_batch_norm,
        "torch.aten.native_batch_norm": _raise_batch_norm,
        "torch.aten._native_batch_norm_legit_no_training": _raise_batch_norm_no_training,
    }
