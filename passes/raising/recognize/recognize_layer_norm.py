"""Recognizes layer norm that a model spells out, as older ONNX exports do.

Formula (Ba, Kiros and Hinton 2016)::

    d = x - mean(x)
    d / sqrt(mean(d^2) + epsilon) * scale + bias

also with ``d * rsqrt(...)``. Scale and bias are taken in where they have the normalized shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.matching import Reader, only_user, recognize
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    build,
    constant_bool,
    constant_float,
    constant_none,
    defining_op,
    int_list,
    is_none,
    is_tensor,
    tensor_info,
)

_ROOTS = ("torch.aten.mul.Tensor", "torch.aten.div.Tensor")


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    if op.name == "torch.aten.div.Tensor":
        candidates = [(op.operands[0], reader.root_of(op.operands[1]))]
    else:
        pairs = ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0]))
        candidates = [(deviation, reader.reciprocal_root_of(scale)) for deviation, scale in pairs]
    for deviation, radicand in candidates:
        if radicand is None:
            continue
        found = _row(deviation, radicand, reader)
        if found is None:
            continue
        value, rank, epsilon = found
        info = tensor_info(value)
        if info != tensor_info(op.results[0]):
            continue  # an epsilon that is a tensor broadcasts, or widens
        sizes = [info.static_dim(axis) for axis in range(info.rank - rank, info.rank)]
        operands = [value, int_list(sizes), constant_none(), constant_none(), constant_float(epsilon)]
        return build("torch.aten.layer_norm", [*operands, constant_bool(False)], [op.results[0].type])[0]
    return None


def _row(deviation: ir.Value, radicand: ir.Value, reader: Reader) -> tuple[ir.Value, int, float] | None:
    """Returns x, the number of normalized dims and epsilon."""
    shifted = reader.plus_scalar(radicand)
    if shifted is None or shifted[1] < 0:
        return None
    variance = reader.mean_over_last(shifted[0])
    difference = reader.difference(deviation)
    if variance is None or difference is None:
        return None
    value, mean_value = difference
    mean = reader.mean_over_last(mean_value)
    if mean is None or mean[0] != value or mean[1] != variance[1] or not tensor_info(value).is_float:
        return None
    squared = reader.square_of(variance[0])
    if squared is None or not _same_difference(squared, deviation, reader):
        return None
    return value, variance[1], shifted[1]


def _same_difference(left: ir.Value, right: ir.Value, reader: Reader) -> bool:
    """Whether both are the same value, or the same difference written twice."""
    difference = reader.difference(left)
    return left == right or (difference is not None and difference == reader.difference(right))


def _match_affine(op: ir.Operation, reader: Reader) -> ir.Value | None:
    """``layer_norm(x) * scale`` or ``layer_norm(x) * scale + bias``, of the normalized shape."""
    is_scale = op.name == "torch.aten.mul.Tensor"
    if not is_scale and reader.scalar(op.operands[2]) != 1:
        return None
    for normalized, weight in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        norm = defining_op(normalized, "torch.aten.layer_norm")
        if norm is None or not is_tensor(weight) or only_user(normalized, op.name) is None:
            continue
        value, sizes, scale, bias, epsilon, cudnn = norm.operands
        # A scale after a bias is no layer norm; a bias alone is fine.
        taken = (not is_none(scale) or not is_none(bias)) if is_scale else not is_none(bias)
        info, count = tensor_info(weight), len(sizes.owner.operation.operands)
        if taken or info.dtype != tensor_info(value).dtype or info.shape != tensor_info(value).shape[-count:]:
            continue
        affine = [weight, bias] if is_scale else [scale, weight]
        return build("torch.aten.layer_norm", [value, sizes, *affine, epsilon, cudnn], [op.results[0].type])[0]
    return None


@dataclass(frozen=True)
class RecognizeLayerNorm(Pass):
    """Turns a spelled-out layer norm into ``torch.aten.layer_norm``. Precondition: none."""

    name: ClassVar[str] = "recognize-layer-norm"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        count = recognize(module, _ROOTS, _match, context)
        recognize(module, ("torch.aten.mul.Tensor",), _match_affine, context)
        recognize(module, ("torch.aten.add.Tensor",), _match_affine, context)
        return count > 0
