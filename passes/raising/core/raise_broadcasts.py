"""Raises what gives elements several places: expand and its kind, repeat, tile, repeat_interleave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect.linalg_builder import Size, loop, map_elements, sizes_of
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import size_from, sizes_from
from lowerkit.passes.raising.core.raise_views import joined, with_ones, without_ones
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    from_builtin,
    int_of,
    is_none,
    tensor_info,
    to_builtin,
)


def broadcast(value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    """Returns ``value`` in a shape that it broadcasts to: dims in front are new, those of the static extent 1 repeat.

    A dim of an open extent is that of the result, as a guard says.
    """
    new = len(sizes) - value.type.rank
    repeats = [axis for axis, size in enumerate(value.type.shape) if size == 1 and sizes[new + axis] != 1]
    if not new and not repeats:
        return value
    places = [loop(new + axis) for axis in range(value.type.rank) if axis not in repeats]
    value = without_ones(value, repeats)
    return map_elements([(value, places)], sizes, value.type.element_type, lambda element: element)


def _expand(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """expand, broadcast_to: (input, sizes): -1 keeps an extent."""
    value, wanted = to_builtin(op.operands[0]), tensor_info(op.results[0])
    given, sizes = sizes_of(value), sizes_from(op.operands[1])
    new = len(sizes) - len(given)
    sizes = [given[axis - new] if size == -1 else size for axis, size in enumerate(sizes)]
    return [from_builtin(broadcast(value, sizes), wanted)]


def _expand_as(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """expand_as: (input, other)."""
    sizes = sizes_of(to_builtin(op.operands[1]))
    return [from_builtin(broadcast(to_builtin(op.operands[0]), sizes), tensor_info(op.results[0]))]


def repeated(value: ir.Value, times: Sequence[Size]) -> ir.Value:
    """Repeats a tensor along its dims, and along new ones in front where there are more ``times`` than dims."""
    new = len(times) - value.type.rank
    value = with_ones(value, range(new))
    sizes = sizes_of(value)
    repeats = [axis for axis in range(len(times)) if axis >= new and times[axis] != 1 and sizes[axis] != 1]
    # Each dim that repeats gets one in front of it that counts the repetitions, and joins it in the end.
    split: list[Size] = []
    places: list[int] = []
    for axis, (count, size) in enumerate(zip(times, sizes, strict=True)):
        if axis in repeats:
            places.append(len(split))
            split += [count, size]
        else:
            split.append(count if size == 1 else size)
    value = broadcast(with_ones(value, places), split)
    for done, place in enumerate(places):
        value = joined(value, place - done, place - done + 2)
    return value


def _repeat(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """repeat, tile: (input, times); tile takes fewer than there are dims, for the last ones."""
    value = to_builtin(op.operands[0])
    times = sizes_from(op.operands[1])
    times = [*[1] * (value.type.rank - len(times)), *times]
    return [from_builtin(repeated(value, times), tensor_info(op.results[0]))]


def _repeat_interleave(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """repeat_interleave.self_int: (input, times, dim, output size): each element several times in a row."""
    value, info, count = to_builtin(op.operands[0]), tensor_info(op.operands[0]), size_from(op.operands[1])
    axis = 0 if is_none(op.operands[2]) else info.normalized_axis(int_of(op.operands[2]))
    if is_none(op.operands[2]) or not info.rank:
        value = joined(value, 0, info.rank)
    sizes = sizes_of(value)
    value = broadcast(with_ones(value, [axis + 1]), [*sizes[: axis + 1], count, *sizes[axis + 1 :]])
    return [from_builtin(joined(value, axis, axis + 2), tensor_info(op.results[0]))]


@dataclass(frozen=True)
class RaiseBroadcasts(TablePass):
    """Raises broadcasts and repetitions. Precondition: none."""

    name: ClassVar[str] = "raise-broadcasts"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _expand for name in ("expand", "broadcast_to", "expand_copy")},
        "torch.aten.expand_as": _expand_as,
        "torch.aten.repeat": _repeat,
        "torch.aten.tile": _repeat,
        "torch.aten.repeat_interleave.self_int": _repeat_interleave,
    }
