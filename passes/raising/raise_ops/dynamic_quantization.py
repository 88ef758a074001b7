"""Scale and zero point that a graph chooses at run time, as PyTorch's ``determine_qparams`` does in f32.

    affine       scale = max((high - low) / (max - min), eps),    zero point = clamp(min - round(low / scale), min, max)
    symmetric    scale = max(2 largest / (max - min), eps),       zero point = 0, or 128 of unsigned bytes

``low <= 0 <= high`` are the smallest and largest element, ``min`` and ``max`` the range that is stored. A tensor of
nothing, or of a NaN, is an error in eager, and is given any parameters here.
"""

from __future__ import annotations

from lowerkit.dialect import ReduceOp
from lowerkit.dialect import linalg_builder as linalg
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import arith, ir, math

__all__ = ["chosen_parameters", "of_one_element", "to_one_element"]


def chosen_parameters(
    data: ir.Value, minimum: int, maximum: int, eps: float, *, symmetric: bool, unsigned: bool
) -> tuple[ir.Value, ir.Value]:
    """Builds scale (f64) and zero point (i64) of rank 0 for a tensor of f32."""
    f32, f64, i64 = ir.F32Type.get(), ir.F64Type.get(), ir.IntegerType.get_signless(64)
    high, low = (ReduceOp.build(data, kind=kind) for kind in ("max", "min"))
    steps = float(maximum - minimum)

    def bounds(largest: ir.Value, smallest: ir.Value) -> tuple[ir.Value, ir.Value]:
        zero = scalar.constant(0.0, f32)
        return scalar.maximum(largest, zero), scalar.minimum(smallest, zero)

    def single(largest: ir.Value, smallest: ir.Value) -> ir.Value:
        above, below = bounds(largest, smallest)
        if symmetric:
            extent = scalar.divide(
                scalar.maximum(scalar.subtract(scalar.constant(0.0, f32), below), above),
                scalar.constant(steps / 2, f32),
            )
        else:
            extent = scalar.divide(scalar.subtract(above, below), scalar.constant(steps, f32))
        return scalar.maximum(extent, scalar.constant(eps, f32))

    def zero_point(largest: ir.Value, smallest: ir.Value) -> ir.Value:
        if symmetric:
            return scalar.constant(128 if unsigned else 0, i64)
        _, below = bounds(largest, smallest)
        rounded = math.RoundEvenOp(scalar.divide(below, single(largest, smallest))).result
        # Clamped before it becomes an integer, which a NaN cannot.
        clamped = arith.MaxNumFOp(
            arith.MinNumFOp(rounded, scalar.constant(0.0, f32)).result, scalar.constant(-steps, f32)
        )
        return scalar.subtract(scalar.constant(minimum, i64), scalar.convert(clamped.result, i64))

    operands = [(high, []), (low, [])]
    scale = linalg.map_elements(operands, [], f64, lambda a, b: scalar.convert(single(a, b), f64))
    return scale, linalg.map_elements(operands, [], i64, zero_point)


def to_one_element(value: ir.Value) -> ir.Value:
    """Gives a tensor of rank 0 the shape [1]."""
    return linalg.expand_scalar(value)


def of_one_element(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns a tensor of one element with rank 0 and another element type."""
    place = [linalg.affine_constant(0)] * ir.RankedTensorType(value.type).rank
    return linalg.map_elements([(value, place)], [], element, lambda number: scalar.convert(number, element))
