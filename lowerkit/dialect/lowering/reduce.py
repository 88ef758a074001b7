"""Reductions as one linalg.generic; positions travel beside the values."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.types import compute_type, is_float
from lowerkit.mlir import ir


def reduce(source: ir.Value, kind: str, axes: Sequence[int], keep_dims: bool) -> ir.Value:
    """Combines all elements along ``axes``."""
    if kind in ("argmax", "argmin"):
        result = _position(source, axes[0], largest=kind == "argmax")
    elif kind in ("any", "all"):
        result = _logical(source, kind, axes)
    else:
        result = _numeric(source, kind, axes)
    if not keep_dims:
        return result
    for axis in axes:
        result = _insert_unit(result, axis)
    return result


def _numeric(source: ir.Value, kind: str, axes: Sequence[int]) -> ir.Value:
    element = source.type.element_type
    extreme = kind in ("max", "min")
    wide = compute_type(element) if is_float(element) and not extreme else element
    start = {
        "sum": lambda: scalar.constant(0, wide),
        "mean": lambda: scalar.constant(0, wide),
        "prod": lambda: scalar.constant(1, wide),
        "max": lambda: scalar.lowest(wide),
        "min": lambda: scalar.highest(wide),
    }[kind]()
    combine = {
        "sum": scalar.add,
        "mean": scalar.add,
        "prod": scalar.multiply,
        "max": scalar.maximum,
        "min": scalar.minimum,
    }[kind]
    total = build.reduce_rows(source, axes, start, lambda item, best: combine(best, scalar.convert(item, wide)))
    if kind != "mean":
        return build.convert_elements(total, element)
    number = build.product([build.size_of(source, axis) for axis in axes])
    count = scalar.constant(number, wide) if isinstance(number, int) else scalar.convert(number, wide)
    every = build.loops(range(total.type.rank))
    return build.map_elements(
        [(total, every)],
        build.sizes_of(total),
        element,
        lambda item: scalar.convert(scalar.divide(item, count), element),
    )


def _logical(source: ir.Value, kind: str, axes: Sequence[int]) -> ir.Value:
    start = scalar.constant(0 if kind == "any" else 1, ir.IntegerType.get_signless(1))
    combine = scalar.either if kind == "any" else scalar.both
    return build.reduce_rows(source, axes, start, lambda item, found: combine(found, scalar.is_nonzero(item)))


def _position(source: ir.Value, axis: int, largest: bool) -> ir.Value:
    """The position of the extreme. The comparison is a total order, so the loops may run in any order."""
    element, index = source.type.element_type, ir.IntegerType.get_signless(64)
    rank = source.type.rank
    kept = [other for other in range(rank) if other != axis]
    sizes = [build.size_of(source, other) for other in kept]
    start = scalar.lowest(element) if largest else scalar.highest(element)
    values = build.filled(sizes, start)
    positions = build.filled(sizes, scalar.constant(0, index))

    def better(item: ir.Value, best: ir.Value, best_position: ir.Value) -> list[ir.Value]:
        position = scalar.convert(build.loop_index(axis), index)
        earlier = scalar.compare("lt", position, best_position)
        wins = scalar.compare("gt" if largest else "lt", item, best)
        ties = scalar.both(scalar.compare("eq", item, best), earlier)
        if is_float(element):
            new, old = scalar.is_nan(item), scalar.is_nan(best)
            wins = scalar.either(wins, scalar.both(new, scalar.negate(old)))
            ties = scalar.either(ties, scalar.both(scalar.both(new, old), earlier))
        take = scalar.either(wins, ties)
        return [scalar.select(take, item, best), scalar.select(take, position, best_position)]

    iterators = ["reduction" if other == axis else "parallel" for other in range(rank)]
    outputs = [(values, build.loops(kept)), (positions, build.loops(kept))]
    return build.generic([(source, build.loops(range(rank)))], outputs, iterators, better)[1]


def _insert_unit(value: ir.Value, axis: int) -> ir.Value:
    rank = value.type.rank
    if rank == 0:
        return build.expand_scalar(value)
    if axis == rank:
        return build.expand_dimension(value, axis - 1, [build.size_of(value, axis - 1), 1])
    return build.expand_dimension(value, axis, [1, build.size_of(value, axis)])
