"""Rotary embedding as one linalg.generic that reads each feature's partner and angle."""

from __future__ import annotations

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.types import compute_type
from lowerkit.mlir import arith, ir


def rope(source: ir.Value, cos: ir.Value, sin: ir.Value, interleaved: bool) -> ir.Value:
    """Rotates pairs of features of ``[B, H, S, D]``."""
    element = source.type.element_type
    wide = compute_type(element)
    features = source.type.shape[3]

    def angle(table: ir.Value, place: ir.Value) -> ir.Value:
        rank = table.type.rank
        at: list[ir.Value] = []
        for axis in range(rank - 1):
            fixed = table.type.shape[axis] == 1
            at.append(build.constant_index(0) if fixed else build.loop_index(4 - rank + axis))
        return scalar.convert(build.extract(table, [*at, place]), wide)

    def rotate(item: ir.Value) -> ir.Value:
        feature = build.loop_index(3)
        two, half = build.constant_index(2), build.constant_index(features // 2)
        if interleaved:
            pair = arith.DivUIOp(feature, two).result
            odd = arith.RemUIOp(feature, two).result
            second = scalar.compare("eq", odd, build.constant_index(1))
            step = build.constant_index(1)
        else:
            pair = arith.RemUIOp(feature, half).result
            second = scalar.compare("ge", feature, half)
            step = half
        partner_place = scalar.select(second, scalar.subtract(feature, step), scalar.add(feature, step))
        others = [build.loop_index(axis) for axis in range(3)]
        partner = scalar.convert(build.extract(source, [*others, partner_place]), wide)
        partner = scalar.select(second, partner, arith.NegFOp(partner).result)
        place = feature if cos.type.shape[-1] == features else pair
        rotated = scalar.multiply(partner, angle(sin, place))
        kept = scalar.multiply(scalar.convert(item, wide), angle(cos, place))
        return scalar.convert(scalar.add(kept, rotated), element)

    return build.map_elements([(source, build.loops(range(4)))], build.sizes_of(source), element, rotate)
