"""Recognizes the root-mean-square norm that a model spells out.

Formula (Zhang and Sennrich 2019)::

    x * rsqrt(mean(x^2) + epsilon) * scale

also as ``x / sqrt(...)``. In 16-bit models the norm is computed on an f32 copy and rounded before the scale;
lk.rms_norm computes in f32 and rounds once, after the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.matching import Reader, only_user, recognize, widened_from
from lowerkit.passes.raising.torch_dialect.torch_ir import build, constant_float, constant_none, int_list, tensor_info

_ROOTS = ("torch.aten.mul.Tensor", "torch.aten.div.Tensor")


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    found = _normalized(op, reader)
    if found is None:
        return None
    value, rank, epsilon = found
    info = tensor_info(value)
    if info != tensor_info(op.results[0]):
        return None  # an epsilon that is a tensor broadcasts, or widens
    sizes = [info.static_dim(axis) for axis in range(info.rank - rank, info.rank)]
    norm = build(
        "torch.aten.rms_norm",
        [value, int_list(sizes), constant_none(), constant_float(epsilon)],
        [op.results[0].type],
    )
    return norm[0]


def _normalized(op: ir.Operation, reader: Reader) -> tuple[ir.Value, int, float] | None:
    """Returns x, how many dims are normalized, and epsilon, where ``op`` is ``x / sqrt(mean(x^2) + epsilon)``."""
    if op.name == "torch.aten.div.Tensor":
        root = reader.root_of(op.operands[1])
        return None if root is None else _mean_square(op.operands[0], root, reader)
    for value, scale in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        root = reader.reciprocal_root_of(scale)
        if root is not None:
            found = _mean_square(value, root, reader)
            if found is not None:
                return found
    return None


def _mean_square(value: ir.Value, radicand: ir.Value, reader: Reader) -> tuple[ir.Value, int, float] | None:
    shifted = reader.plus_scalar(radicand)
    if shifted is None or shifted[1] < 0:
        return None
    mean = reader.mean_over_last(shifted[0])
    if mean is None:
        return None
    squared = reader.square_of(mean[0])
    if squared is None or squared != value or not tensor_info(value).is_float:
        return None
    return value, mean[1], shifted[1]


def _match_scale(op: ir.Operation, reader: Reader) -> ir.Value | None:
    """``rms_norm(x) * scale`` with a scale of the normalized shape, on the f32 copy of a 16-bit x or on x itself."""
    if op.operands[2:] or not all(str(operand.type).startswith("!torch.vtensor") for operand in op.operands):
        return None
    for normalized, scale in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        owner = normalized.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "torch.aten.rms_norm":
            continue
        norm = owner.operation
        if str(norm.operands[2].type) != "!torch.none" or only_user(normalized, op.name) is None:
            continue
        value, sizes, _, epsilon = norm.operands
        info = tensor_info(scale)
        count = len(sizes.owner.operation.operands)
        if info.dtype != tensor_info(value).dtype or info.shape != tensor_info(value).shape[-count:]:
            continue
        return build("torch.aten.rms_norm", [value, sizes, scale, epsilon], [op.results[0].type])[0]
    return None


def _match_rounding(op: ir.Operation, reader: Reader) -> ir.Value | None:
    """``rms_norm(x as f32) as bf16`` becomes ``rms_norm(x)``, which computes in f32 as well."""
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != "torch.aten.rms_norm":
        return None
    norm = owner.operation
    source = widened_from(norm.operands[0])
    if source is None or tensor_info(source) != tensor_info(op.results[0]):
        return None
    if str(norm.operands[2].type) != "!torch.none":
        return None  # a scale in f32: lk wants one element type
    return build("torch.aten.rms_norm", [source, *list(norm.operands)[1:]], [op.results[0].type])[0]


@dataclass(frozen=True)
class RecognizeRmsNorm(Pass):
    """Turns a spelled-out rms norm into ``torch.aten.rms_norm``. Precondition: none.

    A module has float16 or bfloat16 scales after the norm is rounded, so the rounding is absorbed before the scale.
    """

    name: ClassVar[str] = "recognize-rms-norm"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        count = recognize(module, _ROOTS, _match, context)
        recognize(module, ("torch.aten.to.dtype",), _match_rounding, context)
        recognize(module, ("torch.aten.mul.Tensor",), _match_scale, context)
        return count > 0
