"""Quantization as elementwise linalg.generic ops; integers in i64 between load and store."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import arith, ir, math


def quantize(
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    *,
    axis: int,
    formula: str,
    minimum: int,
    maximum: int,
    unsigned: bool,
    element: ir.Type,
) -> ir.Value:
    """Rounds floats to integers; ``unsigned`` changes only the range, which is stated."""
    f32 = ir.F32Type.get()

    def body(value: ir.Value, factor: ir.Value, offset: ir.Value) -> ir.Value:
        wide = scalar.convert(value, f32)
        f64 = ir.F64Type.get()
        if formula == "divide":
            # The f32 quotient without a division: x * (1 / s) in f64 is within 2^-52 of x / s, relatively, and a
            # quotient of numbers of 24 bits is at least 2^-49 away from where rounding to f32 tips over. Only quotients
            # below the normal floats may round otherwise, and become 0 all the same.
            inverse = scalar.divide(scalar.constant(1.0, f64), scalar.convert(scalar.convert(factor, f32), f64))
            quotient = scalar.convert(scalar.multiply(scalar.convert(wide, f64), inverse), f32)
        else:
            inverse = scalar.divide(scalar.constant(1.0, f64), scalar.convert(factor, f64))
            quotient = scalar.multiply(wide, scalar.convert(inverse, f32))
        shifted = scalar.add(math.RoundEvenOp(quotient).result, scalar.convert(offset, f32))
        # The minimum is chosen where the comparison fails, so by a NaN too.
        bounded = _select_float("gt", shifted, scalar.constant(minimum, f32))
        bounded = _select_float("lt", bounded, scalar.constant(maximum, f32))
        if formula == "reciprocal":
            bounded = scalar.select(scalar.is_nan(shifted), scalar.constant(0.0, f32), bounded)
        return scalar.convert(scalar.convert(bounded, ir.IntegerType.get_signless(32)), element)

    return _map([(x, None), (scale, axis), (zero_point, axis)], element, body)


def dequantize(
    value: ir.Value, scale: ir.Value, zero_point: ir.Value, *, axis: int, unsigned: bool, element: ir.Type
) -> ir.Value:
    """Brings integers back to floats."""
    f32 = ir.F32Type.get()

    def body(number: ir.Value, factor: ir.Value, offset: ir.Value) -> ir.Value:
        wide = ir.IntegerType.get_signless(32)
        difference = scalar.subtract(_read(number, unsigned, wide), scalar.convert(offset, wide))
        product = scalar.multiply(scalar.convert(difference, f32), scalar.convert(factor, f32))
        return scalar.convert(product, element)

    return _map([(value, None), (scale, axis), (zero_point, axis)], element, body)


def requant(
    value: ir.Value,
    multiplier: ir.Value,
    shift: ir.Value,
    zero_point: ir.Value,
    *,
    axis: int,
    rounding: str,
    mult_bits: int,
    minimum: int,
    maximum: int,
    unsigned_input: bool,
    element: ir.Type,
) -> ir.Value:
    """Scales integers by ``multiplier / 2^shift``: in the floats that the rounding asks for, else in i64."""
    wide = ir.IntegerType.get_signless(64)
    if rounding == "float32":
        return _requant_in_floats(
            value, multiplier, shift, zero_point, axis, minimum, maximum, unsigned_input=unsigned_input, element=element
        )
    operands = [(value, None), (multiplier, axis), (shift, axis), (zero_point, axis)]
    if rounding == "half_even" and mult_bits <= 25:

        def exact(number: ir.Value, factor: ir.Value, places: ir.Value, offset: ir.Value) -> ir.Value:
            f64, i32 = ir.F64Type.get(), ir.IntegerType.get_signless(32)
            # 2^-places by its bits. Loops over channels are outside of this where they can be.
            exponent = scalar.subtract(scalar.constant(1023, wide), scalar.convert(places, wide))
            power = arith.BitcastOp(f64, arith.ShLIOp(exponent, scalar.constant(52, wide)).result).result
            ratio = scalar.multiply(scalar.convert(factor, f64), power)
            product = scalar.multiply(scalar.convert(_read(number, unsigned_input, i32), f64), ratio)
            shifted = scalar.add(math.RoundEvenOp(product).result, scalar.convert(offset, f64))
            # No NaN comes here: a comparison and a selection are one instruction.
            bounded = _select_float("gt", shifted, scalar.constant(minimum, f64))
            bounded = _select_float("lt", bounded, scalar.constant(maximum, f64))
            return scalar.convert(scalar.convert(bounded, i32), element)

        return _map(operands, element, exact)

    def body(number: ir.Value, factor: ir.Value, places: ir.Value, offset: ir.Value) -> ir.Value:
        product = scalar.multiply(_read(number, unsigned_input, wide), scalar.convert(factor, wide))
        rounded = _shift_right(product, scalar.convert(places, wide), rounding)
        shifted = scalar.add(rounded, scalar.convert(offset, wide))
        bounded = scalar.minimum(
            scalar.maximum(shifted, scalar.constant(minimum, wide)), scalar.constant(maximum, wide)
        )
        return scalar.convert(bounded, element)

    return _map(operands, element, body)


def _requant_in_floats(
    value: ir.Value,
    multiplier: ir.Value,
    shift: ir.Value,
    zero_point: ir.Value,
    axis: int,
    minimum: int,
    maximum: int,
    *,
    unsigned_input: bool,
    element: ir.Type,
) -> ir.Value:
    """Scales integers in f32. The factors of channels are a tensor of their own, which is constant where they are."""
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)

    def ratio(factor: ir.Value, places: ir.Value) -> ir.Value:
        exponent = scalar.subtract(scalar.constant(127, i32), places)
        power = arith.BitcastOp(f32, arith.ShLIOp(exponent, scalar.constant(23, i32)).result).result
        return scalar.multiply(scalar.convert(factor, f32), power)

    ratios = _map([(multiplier, None), (shift, None)], f32, ratio)

    def body(number: ir.Value, factor: ir.Value, offset: ir.Value) -> ir.Value:
        product = scalar.multiply(scalar.convert(_read(number, unsigned_input, i32), f32), factor)
        shifted = scalar.add(math.RoundEvenOp(product).result, scalar.convert(offset, f32))
        lower = arith.MaxNumFOp(shifted, scalar.constant(minimum, f32)).result
        bounded = arith.MinNumFOp(lower, scalar.constant(maximum, f32)).result
        return scalar.convert(scalar.convert(bounded, i32), element)

    return _map([(value, None), (ratios, axis), (zero_point, axis)], element, body)


def _select_float(predicate: str, value: ir.Value, bound: ir.Value) -> ir.Value:
    """Returns ``value`` where it compares so with ``bound``, else the bound."""
    return scalar.select(scalar.compare(predicate, value, bound), value, bound)


def _shift_right(product: ir.Value, places: ir.Value, rounding: str) -> ir.Value:
    wide = product.type
    one, zero = scalar.constant(1, wide), scalar.constant(0, wide)

    def down(number: ir.Value) -> ir.Value:
        return arith.ShRSIOp(number, places).result

    if rounding == "floor":
        return down(product)
    half = arith.ShLIOp(one, scalar.subtract(places, one)).result
    if rounding == "single":
        return down(scalar.add(product, half))
    if rounding == "half_even":
        odd = scalar.both(down(product), one)
        return down(scalar.add(scalar.add(product, scalar.subtract(half, one)), odd))
    negative = scalar.compare("lt", product, zero)
    if rounding == "half_away":
        return down(scalar.add(product, scalar.select(negative, scalar.subtract(half, one), half)))
    bit = 1 << 30
    second = scalar.select(negative, scalar.constant(-bit, wide), scalar.constant(bit, wide))
    second = scalar.select(scalar.compare("gt", places, scalar.constant(31, wide)), second, zero)
    return down(scalar.add(scalar.add(product, half), second))


def _read(number: ir.Value, unsigned: bool, wide: ir.Type) -> ir.Value:
    """Widens a stored integer to the number it stands for."""
    if number.type == wide:
        return number
    return arith.ExtUIOp(wide, number).result if unsigned else scalar.convert(number, wide)


def _map(operands: Sequence[tuple[ir.Value, int | None]], element: ir.Type, body: build.Body) -> ir.Value:
    """Maps elements; an operand with an axis is a scalar, or a vector along that axis of the first operand."""
    first = operands[0][0]
    rank = first.type.rank
    inputs = [
        (value, build.loops(range(rank)) if axis is None else build.loops([axis][: value.type.rank]))
        for value, axis in operands
    ]
    return build.map_elements(inputs, build.sizes_of(first), element, body)
