"""Recognizes rotary position embedding in the form with rotated halves, and builds ``lk.rope``.

Formula (Su et al. 2021, in the layout of Llama)::

    x * cos + concat(-x[..., D/2:], x[..., :D/2]) * sin
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import RopeOp
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.matching import Reader, recognize, slice_of
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    defining_op,
    from_builtin,
    int_of,
    list_items,
    tensor_info,
    to_builtin,
)

_ROOTS = ("torch.aten.add.Tensor",)


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    info = tensor_info(op.results[0])
    if info.rank != 4 or not info.is_float or reader.scalar(op.operands[2]) != 1:
        return None
    for straight, rotated in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        found = _factors(straight, rotated)
        if found is None:
            continue
        value, cos, sin = found
        if tensor_info(value) != info or tensor_info(cos) != tensor_info(sin):
            continue
        if tensor_info(cos).shape[-1:] != info.shape[-1:]:
            continue  # a single angle for all features is not what lk.rope broadcasts
        try:
            return from_builtin(RopeOp.build(to_builtin(value), to_builtin(cos), to_builtin(sin)), info)
        except VerifyError as mismatch:
            raise RefusalError(mismatch.message) from mismatch
    return None


def _factors(straight: ir.Value, rotated: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Returns x, cos and sin, where the two terms are ``x * cos`` and ``rotate_half(x) * sin``."""
    left, right = (defining_op(term, "torch.aten.mul.Tensor") for term in (straight, rotated))
    if left is None or right is None:
        return None
    for rotation, sin in ((right.operands[0], right.operands[1]), (right.operands[1], right.operands[0])):
        value = _rotated_source(rotation)
        if value is None or value not in list(left.operands):
            continue
        return value, left.operands[1] if left.operands[0] == value else left.operands[0], sin
    return None


def _rotated_source(value: ir.Value) -> ir.Value | None:
    """Returns x of ``concat(-x[..., D/2:], x[..., :D/2])`` along the last dim."""
    joined = defining_op(value, "torch.aten.cat")
    if joined is None:
        return None
    info = tensor_info(value)
    items = list_items(joined.operands[0])
    if len(items) != 2 or info.normalized_axis(int_of(joined.operands[1])) != info.rank - 1:
        return None
    negated = defining_op(items[0], "torch.aten.neg")
    if negated is None:
        return None
    upper, lower = slice_of(negated.operands[0]), slice_of(items[1])
    if upper is None or lower is None or upper[0] != lower[0]:
        return None
    size = info.static_dim(info.rank - 1)
    last, half = info.rank - 1, size // 2
    halves = upper[1:] == (last, half, size) and lower[1:] == (last, 0, half) and size % 2 == 0
    return upper[0] if halves else None


@dataclass(frozen=True)
class RecognizeRope(Pass):
    """Turns a spelled-out rotary embedding into ``lk.rope``. Precondition: splits are slices (``decompose-lists``)."""

    name: ClassVar[str] = "recognize-rope"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        return recognize(module, _ROOTS, _match, context) > 0
