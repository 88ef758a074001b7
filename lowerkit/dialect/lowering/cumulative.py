"""Running values: one loop along the axis that carries the value, inside loops over the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering.loops import for_each_row, for_loop
from lowerkit.dialect.types import compute_type, is_float
from lowerkit.mlir import ir


def cumulative(source: ir.Value, kind: str, axis: int, exclusive: bool, reverse: bool) -> ir.Value:
    """Combines each element with all before it along ``axis``."""
    element = source.type.element_type
    wide = compute_type(element) if is_float(element) else element
    start = {
        "sum": lambda: scalar.constant(0, wide),
        "prod": lambda: scalar.constant(1, wide),
        "max": lambda: scalar.lowest(wide),
        "min": lambda: scalar.highest(wide),
    }[kind]()
    combine = {
        "sum": scalar.add,
        "prod": scalar.multiply,
        "max": scalar.maximum,
        "min": scalar.minimum,
    }[kind]
    sizes = build.sizes_of(source)
    length = build.as_index(sizes[axis])
    one = build.constant_index(1)

    def row(at: Callable[[ir.Value], list[ir.Value]], carried: list[ir.Value]) -> Sequence[ir.Value]:
        def step(iteration: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            running, destination = values
            position = scalar.subtract(scalar.subtract(length, one), iteration) if reverse else iteration
            item = scalar.convert(build.extract(source, at(position)), wide)
            following = combine(running, item)
            shown = scalar.convert(running if exclusive else following, element)
            return [following, build.insert(shown, destination, at(position))]

        return for_loop(length, [start, carried[0]], step)[1:]

    return for_each_row(sizes, axis, [build.empty(sizes, element)], row)[0]
