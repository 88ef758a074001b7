"""lk.requant: integers of one scale to integers of another, without floats."""

from __future__ import annotations

from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import quantize as lowering
from lowerkit.dialect.ops.quantize import check_along, require_stored, storage_range
from lowerkit.dialect.reference import quantize as numpy_quantize
from lowerkit.dialect.shapes import element_count, fail, ranked, tensor_type
from lowerkit.dialect.types import is_bool, is_integer
from lowerkit.mlir import ext, ir


class RequantOp(LkOperation, name="requant", traits=[ext.Pure]):
    """Scales integers by ``multiplier / 2^shift``, exactly, and rounds and saturates as it says.

    ``result = clamp(round(input * multiplier / 2^shift) + zero_point, minimum, maximum)``, in 64 bits: every
    implementation gives the same bits. Roundings of a product p with ``half = 2^(shift - 1)``:

    - ``float32``: in f32, the input rounded to it, the product rounded to it, then to nearest, ties to even: what ONNX
      Runtime's kernels do;
    - ``half_even``: to nearest, ties to even;
    - ``half_away``: to nearest, ties away from zero;
    - ``single``: ``(p + half) >> shift``, ties up; TOSA's SINGLE_ROUND;
    - ``double``: as single, after adding 2^30 with the sign of p where the shift is above 31; TOSA's DOUBLE_ROUND;
    - ``floor``: ``p >> shift``.

    Operands:
        input: integers of 8 to 32 bits.
        multiplier: i32 of rank 0, or ``[size of the axis]``; not negative and below ``2^(mult_bits - 1)``.
        shift: i32 of the shape of multiplier, from 1 to 62.
        zero_point: i32 of the shape of multiplier.

    Results:
        result: the shape of input in the storage type.

    Attributes:
        axis: the dimension along which the parameters lie; 0 where they have rank 0.
        rounding: ``float32``, ``half_even``, ``half_away``, ``single``, ``double`` or ``floor``.
        mult_bits: 32, 25 or 16, the bits that a multiplier has with its sign. 25 is a float's 24 bits, the most that
            float32 takes. With the other roundings the input must then stay below 2^29 in magnitude: products are exact
            in f64, which is how vectors compute them.
        minimum: the smallest number that is stored; with float32 at least -2^24.
        maximum: the largest number that is stored; with float32 at most 2^24.
        unsigned_input: the stored bits of the input are read as unsigned numbers.
        unsigned: the stored bits of the result are read as unsigned numbers.
        storage: the element type of the result, i8, i16 or i32.

    FLOPs: 6 for each element: multiply, round, shift, add, two bounds.

    Bytes: operands and result, each once.
    """

    input: Operand
    multiplier: Operand
    shift: Operand
    zero_point: Operand
    axis: ir.IntegerAttr
    rounding: ir.StringAttr
    mult_bits: ir.IntegerAttr
    minimum: ir.IntegerAttr
    maximum: ir.IntegerAttr
    unsigned_input: ir.BoolAttr
    unsigned: ir.BoolAttr
    storage: ir.TypeAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        multiplier: ir.Type,
        shift: ir.Type,
        zero_point: ir.Type,
        *,
        axis: int,
        rounding: str,
        mult_bits: int,
        minimum: int,
        maximum: int,
        unsigned_input: bool,
        unsigned: bool,
        storage: ir.Type,
    ) -> list[ir.Type]:
        """Returns the shape of the input in ``storage``; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_stored("input", data.element_type)
        parameters = {
            name: ranked(name, kind, (0, 1))
            for name, kind in (("multiplier", multiplier), ("shift", shift), ("zero_point", zero_point))
        }
        for name, kind in parameters.items():
            if str(kind.element_type) != "i32":
                fail(f"operand {name} must have i32 elements, found {kind.element_type}")
        check_along(data, axis, parameters)
        roundings = (numpy_quantize.IN_FLOATS, *numpy_quantize.ROUNDINGS)
        if rounding not in roundings:
            fail(f"attribute rounding must be one of {', '.join(roundings)}, found {rounding!r}")
        if mult_bits not in (16, 25, 32):
            fail(f"attribute mult_bits must be 32, 25 or 16, found {mult_bits}")
        if rounding == "float32" and mult_bits == 32:
            fail("attribute mult_bits is 32, but a multiplier of rounding float32 has 25 bits at most")
        if not is_integer(storage) or is_bool(storage) or storage.width > 32:
            fail(f"attribute storage must be i8, i16 or i32, found {storage}")
        low, high = storage_range(storage, unsigned)
        if not low <= minimum <= maximum <= high:
            fail(f"the range {minimum} to {maximum} does not lie within {low} to {high} of the storage type {storage}")
        if rounding == "float32" and max(-minimum, maximum) > 1 << 24:
            fail(f"the range {minimum} to {maximum} does not lie within 24 bits, which rounding float32 asks for")
        return [tensor_type(data.shape, storage)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        multiplier: ir.Value,
        shift: ir.Value,
        zero_point: ir.Value,
        *,
        axis: int = 0,
        rounding: str = "half_even",
        mult_bits: int = 32,
        minimum: int | None = None,
        maximum: int | None = None,
        unsigned_input: bool = False,
        unsigned: bool = False,
        storage: ir.Type | None = None,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; without them, storage is i8 and the range is all that it holds."""
        kept = storage or ir.IntegerType.get_signless(8)
        low, high = storage_range(kept, unsigned)
        parameters: dict[str, Any] = {
            "axis": axis,
            "rounding": rounding,
            "mult_bits": mult_bits,
            "minimum": low if minimum is None else minimum,
            "maximum": high if maximum is None else maximum,
            "unsigned_input": unsigned_input,
            "unsigned": unsigned,
            "storage": kept,
        }
        operands = {"input": input, "multiplier": multiplier, "shift": shift, "zero_point": zero_point}
        return cls.create(operands, parameters, loc=loc, ip=ip).result

    def reference(self, input: Array, multiplier: Array, shift: Array, zero_point: Array) -> tuple[Array, ...]:
        """Computes in int64, with rounding float32 in float32."""
        numbers = numpy_quantize.read_stored(input, unsigned=self.unsigned_input.value)
        result = numpy_quantize.requantize(
            numbers,
            multiplier,
            shift,
            zero_point,
            axis=self.axis.value,
            rounding=self.rounding.value,
            minimum=self.minimum.value,
            maximum=self.maximum.value,
        )
        return self.rounded(result)

    def build_linalg(self) -> list[ir.Value]:
        """Builds one elementwise linalg.generic."""
        parameters = self.parameters()
        element = parameters.pop("storage")
        del parameters["unsigned"]
        operands = (self.input, self.multiplier, self.shift, self.zero_point)
        return [lowering.requant(*operands, element=element, **parameters)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 6 for each element."""
        count = element_count(shape(self.input))
        return None if count is None else 6 * count
