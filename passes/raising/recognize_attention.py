"""Recognizes attention that a model spells out, and builds ``lk.attention``.

Formula (Vaswani et al. 2017)::

    softmax(scale * (query @ transpose(key)) + mask) @ value

The scale may stand on the scores, on query, on key, or be shared out among them. Additive masks are summed. A
selection ``where(keep, scores, c)`` with a very negative c is the additive mask ``where(keep, 0, c)``: c swallows
any any score. ``where(isnan(p), 0, p)`` after the softmax and its kind, which exporters add for rows without keys, is
what lk.attention does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from lowerkit.errors import VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.matching import Reader, recognize, through_casts
from lowerkit.passes.raising.raise_attention import build_attention
from lowerkit.passes.raising.torch_build import binary, broadcast_shape, permute, view
from lowerkit.passes.raising.torch_ir import (
    RefusalError,
    build,
    constant_float,
    constant_int,
    defining_op,
    int_of,
    ints_of,
    is_tensor,
    like_result,
    tensor_info,
)

_RESHAPES = ("torch.aten.view", "torch.aten.reshape", "torch.aten._unsafe_view")
_PRODUCTS = ("torch.aten.matmul", "torch.aten.bmm")
_SWALLOWS_SCORES = -1e4
"""A constant below this takes the place of a score for good: exp(c - max) is zero in every float type."""


@dataclass
class _Scores:
    """What ``scale * (query @ transpose(key)) + masks`` consists of."""

    query: ir.Value
    key: ir.Value
    scale: float
    masks: list[ir.Value] = field(default_factory=list[ir.Value])


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    scores_value = _softmax_input(op.operands[0], reader)
    if scores_value is None:
        return None
    scores = _scores(scores_value, reader)
    if scores is None:
        return None
    info, shape = tensor_info(op.results[0]), tensor_info(scores_value).shape
    if not info.is_float or tensor_info(scores.query).dtype != info.dtype:
        return None
    mask: ir.Value | None = None
    for part in scores.masks:
        if broadcast_shape(tensor_info(part).shape, shape) != shape:
            return None
        mask = part if mask is None else binary("add", mask, part)
    try:
        attended = build_attention(scores.query, scores.key, op.operands[1], mask, scale=scores.scale, causal=False)
    except VerifyError as mismatch:
        raise RefusalError(mismatch.message) from mismatch
    return like_result(attended, op)[0]


def _softmax_input(weights: ir.Value, reader: Reader) -> ir.Value | None:
    """Returns the operand of the softmax over the last dim that ``weights`` is, through casts and NaN guards."""
    weights = through_casts(weights)
    guard = defining_op(weights, "torch.aten.where.self", "torch.aten.where.ScalarSelf")
    guarded = weights
    if guard is not None and reader.scalar(guard.operands[1]) == 0:
        guarded = guard.operands[2]
        weights = through_casts(guarded)
    softmax = defining_op(weights, "torch.aten.softmax.int", "torch.aten._softmax", "torch.aten._safe_softmax")
    if softmax is None:
        return None
    if guard is not None and not _tests_empty_rows(guard.operands[0], guarded, softmax.operands[0], reader):
        return None
    info = tensor_info(softmax.operands[0])
    return softmax.operands[0] if info.normalized_axis(int_of(softmax.operands[1])) == info.rank - 1 else None


def _tests_empty_rows(test: ir.Value, weights: ir.Value, scores: ir.Value, reader: Reader) -> bool:
    """Whether ``test`` is ``isnan(weights)``, ``all(scores == -inf)`` or ``not any(not (scores == -inf))``."""
    is_nan = defining_op(test, "torch.aten.isnan")
    if is_nan is not None:
        return is_nan.operands[0] == weights
    whole = defining_op(test, "torch.aten.all.dim")
    negated = defining_op(test, "torch.aten.logical_not")
    if negated is not None:
        some = defining_op(negated.operands[0], "torch.aten.any.dim")
        finite = None if some is None else defining_op(some.operands[0], "torch.aten.logical_not")
        if some is None or finite is None:
            return False
        whole, infinite = some, finite.operands[0]
    elif whole is not None:
        infinite = whole.operands[0]
    else:
        return False
    if tensor_info(infinite).normalized_axis(int_of(whole.operands[1])) != tensor_info(infinite).rank - 1:
        return False
    equal = defining_op(infinite, "torch.aten.eq.Scalar")
    return equal is not None and equal.operands[0] == scores and reader.scalar(equal.operands[1]) == -math.inf


def _scores(value: ir.Value, reader: Reader) -> _Scores | None:
    value = through_casts(value)
    op = defining_op(value)
    if op is None:
        return None
    if op.name in _PRODUCTS:
        return _scaled_product(op, reader)
    if op.name == "torch.aten.add.Tensor" and reader.scalar(op.operands[2]) == 1:
        for inner, mask in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
            found = _scores(inner, reader) if is_tensor(mask) else None
            if found is not None:
                found.masks.append(mask)
                return found
        return None
    if op.name in ("torch.aten.where.self", "torch.aten.where.ScalarOther"):
        return _selected_scores(op, reader)
    if op.name == "torch.aten.masked_fill.Scalar":
        return None  # decomposed by capture, or spelled as where
    product = reader.product(value)
    if len(product.factors) != 1 or product.factors[0] == value:
        return None
    found = _scores(product.factors[0], reader)
    # A scale over a masked score would scale the mask too.
    if found is None or found.masks:
        return None
    found.scale *= product.coefficient
    return found


def _selected_scores(op: ir.Operation, reader: Reader) -> _Scores | None:
    """``where(keep, scores, c)``."""
    keep, inner, other = op.operands
    fill = reader.scalar(other)
    if fill is None or fill > _SWALLOWS_SCORES or not is_tensor(inner):
        return None
    found = _scores(inner, reader)
    if found is None:
        return None
    dtype = tensor_info(found.query).dtype
    info = tensor_info(keep).with_dtype(dtype)
    zeros_or_fill = build(
        "torch.aten.where.Scalar", [keep, constant_float(0.0), constant_float(fill)], [info.torch_type()]
    )
    found.masks.append(zeros_or_fill[0])
    return found


def _scaled_product(op: ir.Operation, reader: Reader) -> _Scores | None:
    """``(a * query) @ transpose(b * key)``, with the scales taken out of both operands."""
    query = reader.product(op.operands[0])
    key = reader.product(op.operands[1])
    if len(query.factors) != 1 or len(key.factors) != 1:
        return None
    source = _transposed(key.factors[0])
    inner = reader.product(source)
    if len(inner.factors) != 1:
        return None
    scale = query.coefficient * key.coefficient * inner.coefficient
    return _Scores(query.factors[0], inner.factors[0], scale)


def _transposed(value: ir.Value) -> ir.Value:
    """Swaps the last two dims: looks through a swap, or the permutation that includes one, or builds one."""
    info = tensor_info(value)
    swap = [*range(info.rank - 2), info.rank - 1, info.rank - 2]
    op = defining_op(value, "torch.aten.transpose.int", "torch.aten.permute")
    if op is not None and op.name == "torch.aten.transpose.int":
        axes = {info.normalized_axis(int_of(operand)) for operand in op.operands[1:3]}
        if axes == {info.rank - 1, info.rank - 2}:
            return op.operands[0]
    if op is not None and op.name == "torch.aten.permute":
        order = [info.normalized_axis(axis) for axis in ints_of(op.operands[1])]
        # value = permute(x, order), so its swap is permute(x, order with the last two exchanged).
        return permute(op.operands[0], [order[axis] for axis in swap])
    merged = _source_of_merged_transpose(value)
    if merged is not None:
        return merged
    shape = [info.shape[axis] for axis in swap]
    operands = [value, constant_int(info.rank - 2), constant_int(info.rank - 1)]
    return build("torch.aten.transpose.int", operands, [info.with_shape(shape).torch_type()])[0]


def _source_of_merged_transpose(value: ir.Value) -> ir.Value | None:
    """Returns x of ``reshape(transpose(reshape(x)))``, which exporters write to swap the last two dims of x.

    The reshapes merge the leading dims and split them again; reshapes around an x of another rank are merged into one.
    """
    split = defining_op(value, *_RESHAPES)
    swap = None if split is None else defining_op(split.operands[0], "torch.aten.transpose.int")
    merge = None if swap is None else defining_op(swap.operands[0], *_RESHAPES)
    if swap is None or merge is None:
        return None
    result, inner = tensor_info(value), tensor_info(swap.operands[0])
    axes = {inner.normalized_axis(int_of(operand)) for operand in swap.operands[1:3]}
    matrices = inner.shape[-2:]
    if axes != {inner.rank - 1, inner.rank - 2} or matrices != result.shape[:-3:-1]:
        return None
    return view(merge.operands[0], [*result.static_shape()[:-2], *inner.static_shape()[-2:]])


@dataclass(frozen=True)
class RecognizeAttention(Pass):
    """Turns spelled-out attention into ``lk.attention``. Precondition: runs before matrix products are raised."""

    name: ClassVar[str] = "recognize-attention"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        return recognize(module, _PRODUCTS, _match, context) > 0
