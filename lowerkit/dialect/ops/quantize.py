"""lk.quantize and lk.dequantize: between floats and stored integers."""

from __future__ import annotations

from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import quantize as lowering
from lowerkit.dialect.reference import quantize as numpy_quantize
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import compatible, element_count, fail, ranked, tensor_type
from lowerkit.dialect.types import is_bool, is_integer, require_float
from lowerkit.mlir import ext, ir


class QuantizeOp(LkOperation, name="quantize", traits=[ext.Pure]):
    """Rounds floats to integers, computed in f32: to nearest even, then the zero point, then saturation.

    ``result = clamp(round(x / scale) + zero_point, minimum, maximum)``. The formula of the source is kept, because the
    two give different integers near ties: ``divide`` is ONNX's ``round(x / scale)``, ``reciprocal`` is
    ``round(x * (1 / scale))`` of PyTorch's ``quantized_decomposed`` (1 / scale in f64, rounded to f32). A NaN gives
    what its framework gives: the minimum by ``divide`` (ONNX Runtime), 0 by ``reciprocal``.

    Operands:
        input: a float tensor.
        scale: f32 or f64 of rank 0, or ``[size of the axis]``; positive.
        zero_point: i32 of the shape of scale.

    Results:
        result: the shape of input in the storage type.

    Attributes:
        axis: the dimension along which scale and zero_point lie; 0 where they have rank 0.
        formula: ``divide`` or ``reciprocal``.
        minimum: the smallest number that is stored.
        maximum: the largest number that is stored.
        unsigned: the stored bits are read as unsigned numbers.
        storage: the element type of the result, i8 or i16.

    FLOPs: 5 for each element: divide, round, add, two bounds.

    Bytes: operands and result, each once.
    """

    input: Operand
    scale: Operand
    zero_point: Operand
    axis: ir.IntegerAttr
    formula: ir.StringAttr
    minimum: ir.IntegerAttr
    maximum: ir.IntegerAttr
    unsigned: ir.BoolAttr
    storage: ir.TypeAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        scale: ir.Type,
        zero_point: ir.Type,
        *,
        axis: int,
        formula: str,
        minimum: int,
        maximum: int,
        unsigned: bool,
        storage: ir.Type,
    ) -> list[ir.Type]:
        """Returns the shape of the input in ``storage``; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_float("input", data.element_type)
        check_parameters(data, axis, scale, zero_point)
        if formula not in numpy_quantize.FORMULAS:
            fail(f"attribute formula must be one of {', '.join(numpy_quantize.FORMULAS)}, found {formula!r}")
        check_range(storage, unsigned, minimum, maximum)
        return [tensor_type(data.shape, storage)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        scale: ir.Value,
        zero_point: ir.Value,
        *,
        axis: int = 0,
        formula: str = "divide",
        minimum: int | None = None,
        maximum: int | None = None,
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
            "formula": formula,
            "minimum": low if minimum is None else minimum,
            "maximum": high if maximum is None else maximum,
            "unsigned": unsigned,
            "storage": kept,
        }
        operands = {"input": input, "scale": scale, "zero_point": zero_point}
        return cls.create(operands, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, scale: Array, zero_point: Array) -> tuple[Array, ...]:
        """Computes in float32, op by op, as every implementation must."""
        parameters = self.parameters()
        del parameters["unsigned"], parameters["storage"]
        return self.rounded(numpy_quantize.quantize(input, scale, zero_point, **parameters))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one elementwise linalg.generic."""
        parameters = self.parameters()
        element = parameters.pop("storage")
        return [lowering.quantize(self.input, self.scale, self.zero_point, element=element, **parameters)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 5 for each element."""
        count = element_count(shape(self.input))
        return None if count is None else 5 * count


class DequantizeOp(LkOperation, name="dequantize", traits=[ext.Pure]):
    """Brings integers back to floats: ``result = (input - zero_point) * scale``, in f32, rounded once.

    The difference is taken in 32 bits, where only one of 32-bit numbers can wrap around. All sources agree on this
    formula.

    Operands:
        input: integers of 8 to 32 bits.
        scale: f32 or f64 of rank 0, or ``[size of the axis]``; rounded to f32.
        zero_point: i32 of the shape of scale.

    Results:
        result: f32 of the shape of input.

    Attributes:
        axis: the dimension along which scale and zero_point lie; 0 where they have rank 0.
        unsigned: the stored bits are read as unsigned numbers.

    FLOPs: 2 for each element: subtract, multiply.

    Bytes: operands and result, each once.
    """

    input: Operand
    scale: Operand
    zero_point: Operand
    axis: ir.IntegerAttr
    unsigned: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, scale: ir.Type, zero_point: ir.Type, *, axis: int, unsigned: bool
    ) -> list[ir.Type]:
        """Returns the shape of the input in f32; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_stored("input", data.element_type)
        check_parameters(data, axis, scale, zero_point)
        return [tensor_type(data.shape, ir.F32Type.get(data.context))]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        scale: ir.Value,
        zero_point: ir.Value,
        *,
        axis: int = 0,
        unsigned: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        operands = {"input": input, "scale": scale, "zero_point": zero_point}
        return cls.create(operands, {"axis": axis, "unsigned": unsigned}, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, scale: Array, zero_point: Array) -> tuple[Array, ...]:
        """Subtracts in 32 bits and multiplies in float32."""
        numbers = numpy_quantize.read_stored(input, unsigned=self.unsigned.value)
        return (numpy_quantize.dequantize(numbers, scale, zero_point, axis=self.axis.value),)

    def build_linalg(self) -> list[ir.Value]:
        """Builds one elementwise linalg.generic."""
        element = self.result.type.element_type
        return [lowering.dequantize(self.input, self.scale, self.zero_point, element=element, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 2 for each element."""
        count = element_count(shape(self.input))
        return None if count is None else 2 * count


def storage_range(storage: ir.Type, unsigned: bool) -> tuple[int, int]:
    """Returns the smallest and the largest number that a storage type holds."""
    width = ir.IntegerType(storage).width
    return (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


def require_stored(name: str, element: ir.Type) -> None:
    """Fails unless the elements are integers of 8 to 32 bits."""
    if not is_integer(element) or is_bool(element) or element.width > 32:
        fail(f"operand {name} must have integer elements of 8 to 32 bits, found {element}")


def check_range(storage: ir.Type, unsigned: bool, minimum: int, maximum: int) -> None:
    """Fails unless the range lies within an 8 or 16 bit storage type."""
    if not is_integer(storage) or storage.width not in (8, 16):
        fail(f"attribute storage must be i8 or i16, found {storage}")
    low, high = storage_range(storage, unsigned)
    if not low <= minimum <= maximum <= high:
        fail(f"the range {minimum} to {maximum} does not lie within {low} to {high} of the storage type {storage}")


def check_parameters(data: ir.RankedTensorType, axis: int, scale: ir.Type, zero_point: ir.Type) -> None:
    """Fails unless scale and zero point are numbers, or vectors along ``axis`` of ``data``."""
    factors, offsets = ranked("scale", scale, (0, 1)), ranked("zero_point", zero_point, (0, 1))
    if str(factors.element_type) not in ("f32", "f64"):
        fail(f"operand scale must have f32 or f64 elements, found {factors.element_type}")
    if str(offsets.element_type) != "i32":
        fail(f"operand zero_point must have i32 elements, found {offsets.element_type}")
    check_along(data, axis, {"scale": factors, "zero_point": offsets})


def check_along(data: ir.RankedTensorType, axis: int, parameters: dict[str, ir.RankedTensorType]) -> None:
    """Fails unless parameters have one shape: none, or the size of ``axis``."""
    shapes = {name: list(kind.shape) for name, kind in parameters.items()}
    first, *others = shapes
    for name in others:
        if len(shapes[name]) != len(shapes[first]) or not all(map(compatible, shapes[name], shapes[first])):
            fail(f"{first} has type {parameters[first]}, {name} has {parameters[name]}: their shapes must be equal")
    if not shapes[first]:
        if axis != 0:
            fail(f"attribute axis is {axis}, but {first} is one number for all: it must be 0")
        return
    if not 0 <= axis < data.rank:
        fail(f"attribute axis is {axis}, which is not a dimension of {data}")
    if not compatible(shapes[first][0], data.shape[axis]):
        fail(f"{first} has type {parameters[first]}, but dimension {axis} of {data} has another size")
