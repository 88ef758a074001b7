"""Recognizes attention that a model spells out, and builds ``lk.attention``.

Formula (Vaswani et al. 2017)::

    softmax(scale * (query @ transpose(key)) + mask) @ value

The scale may stand on the scores, on query, on key, or be shared out among them. Masks that are added are summed, as
floats: a bool counts 1. A selection ``where(keep, scores, c)``, of one c, is outermost. Both at once stay as they are.
A row of scores that are all -inf is NaN, unless ``where(isnan(p), 0, p)`` after the softmax or its kind says zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lowerkit.errors import VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.raise_ops.raise_attention import build_attention
from lowerkit.passes.raising.torch_dialect.matching import Reader, recognize, through_casts
from lowerkit.passes.raising.torch_dialect.torch_build import binary, broadcast_shape, cast, permute, view
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_int,
    defining_op,
    int_of,
    ints_of,
    is_tensor,
    like_result,
    tensor_info,
)
from lowerkit.program.dtypes import NUMPY_DTYPES

_RESHAPES = ("torch.aten.view", "torch.aten.reshape", "torch.aten._unsafe_view")
_PRODUCTS = ("torch.aten.matmul", "torch.aten.bmm")
_GUARDS = ("torch.aten.where.self", "torch.aten.where.ScalarSelf")
_SELECTIONS = ("torch.aten.where.self", "torch.aten.where.ScalarOther")


@dataclass
class _Scores:
    """What ``scale * (query @ transpose(key)) + masks`` consists of, or ``where(keep, ..., fill)`` of it.

    ``dtypes`` are those that the scores have on the way, from the product on.
    """

    query: ir.Value
    key: ir.Value
    scale: float
    masks: list[ir.Value] = field(default_factory=list[ir.Value])
    keep: ir.Value | None = None
    fill: float = -math.inf
    dtypes: set[str] = field(default_factory=set[str])


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    found = _softmax_input(op.operands[0], reader)
    if found is None:
        return None
    scores_value, empty_rows, dtypes = found
    scores = _scores(scores_value, reader)
    if scores is None:
        return None
    info = tensor_info(op.results[0])
    own = {tensor_info(value).dtype for value in (scores.query, scores.key, op.operands[1])}
    if not info.is_float or own != {info.dtype}:
        return None
    # In f32 a score of f16 would not overflow, and one of f64 would lose its digits.
    if not (scores.dtypes | dtypes) <= {info.dtype, "f64" if info.dtype == "f64" else "f32"}:
        return None
    # Factors one after the other keep to the range where their product does not.
    if not np.isfinite(np.asarray(scores.scale).astype(NUMPY_DTYPES["f64" if info.dtype == "f64" else "f32"])):
        return None
    mask = scores.keep
    if mask is None and scores.masks:
        mask = _sum_of(scores.masks, info.dtype, tensor_info(scores_value).shape)
        if mask is None:
            return None
    try:
        attended = build_attention(
            scores.query,
            scores.key,
            op.operands[1],
            mask,
            scale=scores.scale,
            causal=False,
            fill=None if scores.keep is None else scores.fill,
            empty_rows=empty_rows,
        )
    except VerifyError as mismatch:
        raise RefusalError(mismatch.message) from mismatch
    return like_result(attended, op)[0]


def _sum_of(masks: list[ir.Value], dtype: str, shape: tuple[int | None, ...]) -> ir.Value | None:
    """Adds masks as floats; None where one is wider than the computation, or makes the scores larger."""
    total: ir.Value | None = None
    for part in masks:
        info = tensor_info(part)
        if (info.dtype == "f64" and dtype != "f64") or broadcast_shape(info.shape, shape) != shape:
            return None
        wide = dtype if dtype == "f64" else "f32"
        plain = info.dtype in (wide, dtype) and len(masks) == 1
        term = part if plain else cast(part, wide)
        total = term if total is None else binary("add", total, term)
    return total


def _softmax_input(weights: ir.Value, reader: Reader) -> tuple[ir.Value, str, set[str]] | None:
    """Reads the softmax over the last dim that ``weights`` is, through casts and NaN guards.

    Returns its operand, what rows without keys give, and the types it is computed in.
    """
    weights = through_casts(weights)
    guard = defining_op(weights, *_GUARDS)
    guarded = weights
    if guard is not None and reader.scalar(guard.operands[1]) == 0:
        guarded = guard.operands[2]
        weights = through_casts(guarded)
    softmax = defining_op(weights, "torch.aten.softmax.int", "torch.aten._softmax", "torch.aten._safe_softmax")
    if softmax is None:
        return None
    scores = softmax.operands[0]
    empty_rows = "zero" if softmax.name == "torch.aten._safe_softmax" else "nan"
    if guard is not None:
        test = _tested_rows(guard.operands[0], guarded, scores, reader)
        if test is None or tensor_info(guard.results[0]).shape != tensor_info(guarded).shape:
            return None
        empty_rows = test
    info = tensor_info(scores)
    if info.normalized_axis(int_of(softmax.operands[1])) != info.rank - 1:
        return None
    return scores, empty_rows, {info.dtype, tensor_info(weights).dtype}


def _tested_rows(test: ir.Value, weights: ir.Value, scores: ir.Value, reader: Reader) -> str | None:
    """Returns which rows a guard makes zero: those with NaN, or those of -inf; see ``lk.attention``."""
    is_nan = defining_op(test, "torch.aten.isnan")
    if is_nan is not None:
        return "guarded" if is_nan.operands[0] == weights else None
    # Without the last dim the test would be broadcast along it: one of columns.
    whole_rows = tensor_info(test).shape == (*tensor_info(scores).shape[:-1], 1)
    return "zero" if whole_rows and _tests_empty_rows(test, scores, reader) else None


def _tests_empty_rows(test: ir.Value, scores: ir.Value, reader: Reader) -> bool:
    """Whether ``test`` is ``all(scores == -inf)`` or ``not any(not (scores == -inf))``."""
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
    found = _masked_scores(through_casts(value), reader)
    if found is not None:
        found.dtypes.update(tensor_info(each).dtype for each in (value, through_casts(value)))
    return found


def _masked_scores(value: ir.Value, reader: Reader) -> _Scores | None:
    op = defining_op(value)
    if op is None:
        return None
    if op.name in _PRODUCTS:
        return _scaled_product(op, reader)
    if op.name == "torch.aten.add.Tensor" and reader.scalar(op.operands[2]) == 1:
        for inner, mask in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
            found = _scores_of_shape(inner, value, reader) if is_tensor(mask) else None
            if found is not None and found.keep is None:
                found.masks.append(mask)
                return found
        return None
    if op.name in _SELECTIONS:
        return _selected_scores(op, reader)
    product = reader.product(value)
    if len(product.factors) != 1 or product.factors[0] == value:
        return None
    found = _scores_of_shape(product.factors[0], value, reader)
    # A scale over a masked score would scale the mask too.
    if found is None or found.masks or found.keep is not None:
        return None
    found.scale *= product.coefficient
    return found


def _scores_of_shape(value: ir.Value, like: ir.Value, reader: Reader) -> _Scores | None:
    """Reads scores that an op around them, of the value ``like``, does not broadcast."""
    return _scores(value, reader) if tensor_info(value).shape == tensor_info(like).shape else None


def _selected_scores(op: ir.Operation, reader: Reader) -> _Scores | None:
    """``where(keep, scores, c)``, also of a selection by the same c."""
    keep, inner, other = op.operands
    fill = reader.scalar(other)
    if fill is None or not is_tensor(inner) or tensor_info(keep).dtype != "i1":
        return None
    found = _scores_of_shape(inner, op.results[0], reader)
    if found is None or found.masks:
        return None
    fill = float(np.asarray(fill).astype(NUMPY_DTYPES[tensor_info(op.results[0]).dtype]))
    if found.keep is None:
        found.keep, found.fill = keep, fill
        return found
    if found.fill != fill:
        return None
    shape = broadcast_shape(tensor_info(keep).shape, tensor_info(found.keep).shape)
    kind = tensor_info(keep).with_shape(shape).torch_type()
    found.keep = build("torch.aten.logical_and", [keep, found.keep], [kind])[0]
    return found


def _scaled_product(op: ir.Operation, reader: Reader) -> _Scores | None:
    """``(a * query) @ transpose(b * key)``, with the scales taken out of both operands."""
    query, scale_of_query = _unscaled(op.operands[0], reader)
    key, scale_of_key = _unscaled(op.operands[1], reader)
    source, scale_of_source = _unscaled(_transposed(key), reader)
    scale = scale_of_query * scale_of_key * scale_of_source
    return _Scores(query, source, scale, dtypes={tensor_info(op.results[0]).dtype})


def _unscaled(value: ir.Value, reader: Reader) -> tuple[ir.Value, float]:
    """Returns a tensor of the same type, and the scalar that ``value`` is it times."""
    product = reader.product(value)
    if len(product.factors) != 1 or product.factors[0].type != value.type:
        return value, 1.0
    return product.factors[0], product.coefficient


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
