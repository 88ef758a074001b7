"""Numbers of the torch dialect as scalars of the builtin types: i64 for ints, f64 for floats, i1 for bools.

``torch_c.to_i64`` and its kind stand between the two until the function is converted as a whole, as ``to_builtin`` does
for tensors; the opposite cast is taken apart rather than stacked on.
"""

from __future__ import annotations

import math

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.linalg_builder import Size
from lowerkit.dialect.types import is_bool, is_float
from lowerkit.mlir import arith, ir
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_bool,
    constant_float,
    constant_int,
    defining_op,
    list_items,
    try_int,
    try_number,
)

_SCALARS = {"!torch.int": "i64", "!torch.float": "f64", "!torch.bool": "i1"}
_NUMBERS = {scalar_type: torch_type for torch_type, scalar_type in _SCALARS.items()}


def i64() -> ir.Type:
    """The type of an int."""
    return ir.IntegerType.get_signless(64)


def f64() -> ir.Type:
    """The type of a float."""
    return ir.F64Type.get()


def to_scalar(value: ir.Value) -> ir.Value:
    """Returns a number as i64, f64 or i1; refuses what is no int, float or bool."""
    kind = _SCALARS.get(str(value.type))
    if kind is None:
        raise RefusalError(f"{value.type} is no int, float or bool")
    number = try_number(value)
    if number is not None:
        return scalar.constant(number, ir.Type.parse(kind))
    opposite = defining_op(value, f"torch_c.from_{kind}")
    if opposite is not None:
        return opposite.operands[0]
    return build(f"torch_c.to_{kind}", [value], [ir.Type.parse(kind)])[0]


def from_scalar(value: ir.Value) -> ir.Value:
    """Returns a scalar of type i64, f64 or i1 as a number of the torch dialect; index values become ints."""
    if isinstance(value.type, ir.IndexType):
        value = scalar.convert(value, i64())
    kind = str(value.type)
    return build(f"torch_c.from_{kind}", [value], [ir.Type.parse(_NUMBERS[kind])])[0]


def constant_like(number: float | int, kind: ir.Type) -> ir.Value:
    """Builds a constant number of the torch type ``kind``."""
    match str(kind):
        case "!torch.bool":
            return constant_bool(bool(number))
        case "!torch.float":
            return constant_float(float(number))
        case _:
            return constant_int(int(number))


def size_from(value: ir.Value) -> Size:
    """Returns an int as a size: a number where it is constant, else an index value."""
    number = try_int(value)
    if number is not None:
        return number
    found = to_scalar(value)
    cast = defining_op(found, "arith.index_cast")
    return cast.operands[0] if cast is not None else arith.IndexCastOp(ir.IndexType.get(), found).result


def sizes_from(value: ir.Value) -> list[Size]:
    """Returns a spelled-out list of ints as sizes."""
    return [size_from(item) for item in list_items(value)]


def element_from(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns a number as an element of a tensor, converted as PyTorch does.

    Integers are cut off as in C, a bool says whether the number is not zero, 16-bit floats are rounded from f32.
    """
    number = try_number(value)
    return _constant_element(number, element) if number is not None else scalar_as(to_scalar(value), element)


def scalar_as(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns a scalar i64, f64 or i1 in another type, as :func:`element_from` does."""
    if value.type == element:
        return value
    if is_bool(element):
        return scalar.is_nonzero(value)
    if is_float(value.type) and not is_float(element):
        return scalar.convert(scalar.convert(value, i64()), element)
    if is_float(element) and ir.FloatType(element).width == 16:
        return scalar.convert(scalar.convert(value, ir.F32Type.get()), element)
    return scalar.convert(value, element)


def _constant_element(number: float | int, element: ir.Type) -> ir.Value:
    if is_float(element):
        return scalar.constant(number, element)
    if is_bool(element):
        return scalar.constant(number != 0, element)
    if not math.isfinite(number):
        raise RefusalError(f"the number {number} as {element}")
    half = 1 << (ir.IntegerType(element).width - 1)
    return scalar.constant((int(number) + half) % (2 * half) - half, element)
