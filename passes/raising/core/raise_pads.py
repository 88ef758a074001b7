"""Raises padding: with a number to ``tensor.pad``, with elements of the tensor itself to look-ups along each dim.

Amounts below 0 cut elements off. Those of the last dim come first, low and high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect.linalg_builder import DYNAMIC, Size, constant_index, dynamic_values, size_of, static_shape
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import element_from, sizes_from
from lowerkit.passes.raising.core.raise_permutations import taken, taken_at
from lowerkit.passes.raising.core.slices import add, maximum, part, subtract
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    constant_float,
    from_builtin,
    ints_of,
    is_none,
    string_of,
    tensor_info,
    to_builtin,
)


def _pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """pad: (input, amounts, mode, value)."""
    mode = string_of(op.operands[2])
    if mode != "constant":
        return _with_elements(op, mode)
    return _with_number(op, constant_float(0.0) if is_none(op.operands[3]) else op.operands[3])


def _constant_pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """constant_pad_nd: (input, amounts, value)."""
    return _with_number(op, op.operands[2])


def _with_number(op: ir.Operation, number: ir.Value) -> Sequence[ir.Value]:
    """``tensor.pad`` knows no amounts below 0: what they cut off goes first."""
    value, info = to_builtin(op.operands[0]), tensor_info(op.results[0])
    amounts = sizes_from(op.operands[1])
    lows, highs = [list[Size]([0] * info.rank) for _ in range(2)]
    for position, (low, high) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = info.rank - 1 - position
        cut_low, cut_high = (maximum(subtract(0, amount), 0) for amount in (low, high))
        count = subtract(subtract(size_of(value, axis), cut_low), cut_high)
        value = part(value, axis, cut_low, count) if cut_low != 0 or cut_high != 0 else value
        lows[axis], highs[axis] = maximum(low, 0), maximum(high, 0)
    fill = element_from(number, value.type.element_type)
    return [from_builtin(padded(value, lows, highs, fill), info)]


def padded(value: ir.Value, lows: Sequence[Size], highs: Sequence[Size], fill: ir.Value) -> ir.Value:
    """Returns the tensor with ``fill`` around it; the tensor itself where nothing is added."""
    if all(amount == 0 for amount in (*lows, *highs)):
        return value
    sizes = [
        size + low + high if size != DYNAMIC and isinstance(low, int) and isinstance(high, int) else DYNAMIC
        for size, low, high in zip(value.type.shape, lows, highs, strict=True)
    ]
    kind = ir.RankedTensorType.get(sizes, value.type.element_type)
    before, after = static_shape(lows), static_shape(highs)
    op = tensor.PadOp(kind, value, dynamic_values(lows), dynamic_values(highs), before, after)
    with ir.InsertionPoint(op.regions[0].blocks.append(*[ir.IndexType.get()] * len(sizes))):
        tensor.YieldOp(fill)
    return op.result


def _elements(mode: str) -> Rule:
    """reflection_pad1d to 3d and replication_pad1d to 3d: (input, amounts)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        return _with_elements(op, mode)

    return rule


def _with_elements(op: ir.Operation, mode: str) -> Sequence[ir.Value]:
    """Pads with elements of the tensor: one look-up for each padded dim."""
    value, amounts = to_builtin(op.operands[0]), ints_of(op.operands[1])
    if mode not in ("reflect", "replicate", "circular"):
        raise RefusalError(f"padding mode {mode!r}")
    for position, (low, high) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        axis = value.type.rank - 1 - position
        if mode == "circular" and min(low, high) < 0:
            # What is cut off is gone before the rest is repeated; reflections see it.
            cut = max(-low, 0)
            value = part(value, axis, cut, subtract(size_of(value, axis), cut + max(-high, 0)))
            low, high = max(low, 0), max(high, 0)  # noqa: PLW2901
        if low or high:
            value = _along(value, axis, low, high, mode)
    return [from_builtin(value, tensor_info(op.results[0]))]


def _along(value: ir.Value, axis: int, low: int, high: int, mode: str) -> ir.Value:
    size = size_of(value, axis)
    if isinstance(size, int):
        limit = {"reflect": size - 1, "circular": size}.get(mode, max(low, high))
        if max(low, high) > limit or size + low + high < 1:
            raise RefusalError(f"{mode} padding of {low} and {high} around {size} elements")
        return taken_at(value, axis, [_source(index, size, mode) for index in range(-low, size + high)])
    last = arith.SubIOp(size, constant_index(1)).result

    def source(place: ir.Value) -> ir.Value:
        shifted = arith.SubIOp(place, constant_index(low)).result
        if mode == "circular":
            turned = arith.AddIOp(shifted, size).result
            return arith.RemUIOp(turned, size).result
        if mode == "replicate":
            inside = arith.MaxSIOp(shifted, constant_index(0)).result
            return arith.MinSIOp(inside, last).result
        forward = arith.MaxSIOp(shifted, arith.SubIOp(constant_index(0), shifted).result).result
        twice = arith.AddIOp(last, last).result
        return arith.MinSIOp(forward, arith.SubIOp(twice, forward).result).result

    return taken(value, axis, add(size, low + high), source)


def _source(index: int, size: int, mode: str) -> int:
    """Returns which element stands at ``index``, counted from the first element, below 0 in the low padding."""
    if mode == "replicate":
        return min(max(index, 0), size - 1)
    return index % size if mode == "circular" else min(abs(index), 2 * (size - 1) - abs(index))


@dataclass(frozen=True)
class RaisePads(TablePass):
    """Raises padding. Precondition: none; padding by elements has constant amounts."""

    name: ClassVar[str] = "raise-pads"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.pad": _pad,
        "torch.aten.constant_pad_nd": _constant_pad,
        **{f"torch.aten.reflection_pad{count}d": _elements("reflect") for count in (1, 2, 3)},
        **{f"torch.aten.replication_pad{count}d": _elements("replicate") for count in (1, 2, 3)},
    }
