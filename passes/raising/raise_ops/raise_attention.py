"""Raises scaled dot-product attention to ``lk.attention``.

Models that spread few key and value heads over many query heads (grouped queries) do so by unsqueeze, expand and
reshape, or by repeat_interleave. These copies are looked through: lk.attention takes the few heads as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import AttentionOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    cast,
    expand,
    size,
    squeeze,
    unary,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    build,
    defining_op,
    from_builtin,
    is_none,
    like_result,
    number_of,
    tensor_info,
    to_builtin,
    try_int,
)

_RESHAPES = (
    "torch.aten.view",
    "torch.aten.reshape",
    "torch.aten._unsafe_view",
    "torch.aten.flatten.using_ints",
    "torch.aten._reshape_alias",
)
_COPIES = ("torch.aten.clone", "torch.aten.contiguous", "torch.aten.detach", "torch.aten.alias")
_EXPANSIONS = ("torch.aten.expand", "torch.aten.broadcast_to")


def unrepeated_heads(value: ir.Value) -> ir.Value:
    """Returns the ``[B, Hk, T, D]`` whose heads ``value`` ``[B, H, T, D]`` repeats, each H/Hk times in a row.

    Returns ``value`` itself where it repeats nothing.
    """
    info = tensor_info(value)
    if info.rank != 4:
        return value
    source = _repeated_by_expansion(value) or _repeated_by_interleaving(value)
    return source if source is not None else value


def _repeated_by_expansion(value: ir.Value) -> ir.Value | None:
    """``reshape(expand(unsqueeze(x, 2), [B, Hk, n, T, D]), [B, Hk * n, T, D])``."""
    reshape = defining_op(_through(value, _COPIES), *_RESHAPES)
    if reshape is None:
        return None
    expansion = defining_op(_through(reshape.operands[0], _COPIES), *_EXPANSIONS)
    if expansion is None:
        return None
    narrow, wide, result = (tensor_info(each) for each in (expansion.operands[0], expansion.results[0], value))
    if wide.rank != 5 or narrow.rank != 5 or narrow.shape[2] != 1 or wide.shape[2] is None:
        return None
    heads = narrow.shape[1]
    if heads is None or wide.shape[1] != heads or result.shape[1] != heads * wide.shape[2]:
        return None
    unchanged = [(narrow.shape[axis], wide.shape[axis]) for axis in (0, 3, 4)]
    if any(before != after for before, after in unchanged) or result.shape[3] != narrow.shape[4]:
        return None
    unsqueezed = defining_op(_through(expansion.operands[0], _COPIES), "torch.aten.unsqueeze", *_RESHAPES)
    if unsqueezed is None:
        return None
    source = unsqueezed.operands[0]
    expected = (*narrow.shape[:2], *narrow.shape[3:])
    is_unsqueeze = unsqueezed.name != "torch.aten.unsqueeze" or try_int(unsqueezed.operands[1]) in (2, -3)
    return source if is_unsqueeze and tensor_info(source).shape == expected else None


def _repeated_by_interleaving(value: ir.Value) -> ir.Value | None:
    """``repeat_interleave(x, n, dim=1)``."""
    op = defining_op(_through(value, _COPIES), "torch.aten.repeat_interleave.self_int")
    if op is None or try_int(op.operands[1]) is None or try_int(op.operands[2]) not in (1, -3):
        return None
    return op.operands[0]


def _through(value: ir.Value, names: Sequence[str]) -> ir.Value:
    while (op := defining_op(value, *names)) is not None:
        value = op.operands[0]
    return value


def _of_one_batch(query: ir.Value, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Copies batches of one, and heads of one where key and value, or query and both, differ: eager broadcasts them."""
    query, key, value = _broadcast([query, key, value], 0)
    key, value = _broadcast([key, value], 1)
    if tensor_info(query).shape[1] == 1:
        query, key, value = _broadcast([query, key, value], 1)
    return query, key, value


def _broadcast(values: Sequence[ir.Value], axis: int) -> list[ir.Value]:
    wide = next((value for value in values if tensor_info(value).shape[axis] != 1), None)
    if wide is None:
        return list(values)
    found: list[ir.Value] = []
    for value in values:
        sizes = [size(value, place) for place in range(4)]
        sizes[axis] = size(wide, axis)
        found.append(expand(value, sizes) if tensor_info(value).shape[axis] == 1 else value)
    return found


def build_attention(
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None,
    *,
    scale: float | None,
    causal: bool,
    fill: float | None = None,
    empty_rows: str = "zero",
) -> ir.Value:
    """Builds attention over torch tensors of rank 2 or more; all but the last three dims are batch dims.

    With ``fill`` the mask selects, without it is added; see ``lk.attention``.
    """
    rank = tensor_info(query).rank
    if {tensor_info(key).rank, tensor_info(value).rank} != {rank} or rank < 2:
        raise RefusalError("query, key and value of different ranks")
    shape = tensor_info(query).shape
    if rank > 4:
        batch = 1
        for axis in range(rank - 3):
            batch *= tensor_info(query).static_dim(axis)
        for operand in (key, value):
            if tensor_info(operand).shape[: rank - 3] != shape[: rank - 3]:
                raise RefusalError("batch dims of query, key and value that broadcast")
        if mask is not None and tensor_info(mask).rank > 3:
            raise RefusalError("a mask with several batch dims")
        query, key, value = (
            view(operand, [batch, *tensor_info(operand).static_shape()[-3:]]) for operand in (query, key, value)
        )
    for _ in range(rank, 4):
        query, key, value = unsqueeze(query, 0), unsqueeze(key, 0), unsqueeze(value, 0)
    few_keys, few_values = unrepeated_heads(key), unrepeated_heads(value)
    if tensor_info(few_keys).shape[1] == tensor_info(few_values).shape[1]:
        key, value = few_keys, few_values
    query, key, value = _of_one_batch(query, key, value)
    info = tensor_info(query)
    if mask is not None:
        mask_dtype = tensor_info(mask).dtype
        wide = info.dtype if info.dtype == "f64" else "f32"
        mask = mask if mask_dtype in ("i1", wide, info.dtype) else cast(mask, wide)
    result = AttentionOp.build(
        to_builtin(query),
        to_builtin(key),
        to_builtin(value),
        None if mask is None else to_builtin(mask),
        scale=scale,
        causal=causal,
        masking="add" if fill is None else "select",
        fill=-math.inf if fill is None else fill,
        empty_rows=empty_rows,
    )
    width = tensor_info(value).shape[-1]
    attended = from_builtin(result, info.with_shape([*info.shape[:3], width]))
    if rank > 4:
        return view(
            attended, [*(extent for extent in shape[:-1] if extent is not None), tensor_info(value).static_dim(-1)]
        )
    for _ in range(rank, 4):
        attended = squeeze(attended, 0)
    return attended


def _raise_attention(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """scaled_dot_product_attention: (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)."""
    query, key, value, mask, dropout, causal, scale = list(op.operands)[:7]
    return like_result(_checked(query, key, value, mask, dropout, causal, scale), op)


def _raise_attention_for_cpu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """_scaled_dot_product_flash_attention_for_cpu: (query, key, value, dropout_p, is_causal, attn_mask, scale)."""
    query, key, value, dropout, causal, mask, scale = op.operands
    if not all(is_unused(result) for result in list(op.results)[1:]):
        raise RefusalError("the logarithm of the sum of exponentials is read")
    attended = _checked(query, key, value, mask, dropout, causal, scale)
    return [*like_result(attended, op), *([None] * (len(op.results) - 1))]


def _of_rank(value: ir.Value, rank: int) -> ir.Value:
    """Puts dims of 1 in front: eager broadcasts."""
    while tensor_info(value).rank < rank:
        value = unsqueeze(value, 0)
    return value


def _checked(
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value,
    dropout: ir.Value,
    causal: ir.Value,
    scale: ir.Value,
) -> ir.Value:
    if number_of(dropout) != 0:
        raise RefusalError("attention with dropout: call model.eval() before capture")
    rank = max(tensor_info(operand).rank for operand in (query, key, value))
    query, key, value = (_of_rank(operand, rank) for operand in (query, key, value))
    factor = None if is_none(scale) else float(number_of(scale))
    if factor is None and tensor_info(query).shape[-1] is None:
        query, factor = _scaled(query), 1.0
    return build_attention(query, key, value, None if is_none(mask) else mask, scale=factor, causal=bool_of(causal))


def _scaled(query: ir.Value) -> ir.Value:
    """Divides by the square root of the features, of which there are as many as each input brings."""
    info = tensor_info(query)
    count = size(query, info.rank - 1)
    features = build("torch.prim.NumToTensor.Scalar", [count], [info.with_shape([]).with_dtype("si64").torch_type()])[0]
    wide = info.dtype if info.dtype == "f64" else "f32"
    return cast(binary("mul", cast(query, wide), unary("rsqrt", cast(features, wide))), info.dtype)


@dataclass(frozen=True)
class RaiseAttention(TablePass):
    """Raises scaled dot-product attention to ``lk.attention``. Precondition: none."""

    name: ClassVar[str] = "raise-attention"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.scaled_dot_product_attention": _raise_attention,
        "torch.aten._scaled_dot_product_flash_attention_for_cpu": _raise_attention_for_cpu,
    }
