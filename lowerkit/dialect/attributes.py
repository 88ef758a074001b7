"""Python values to MLIR attributes and back, by the attribute class that an op declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

from lowerkit.dialect.shapes import fail
from lowerkit.mlir import ir

_KIND_NAMES: dict[Any, str] = {
    ir.BoolAttr: "a bool",
    ir.IntegerAttr: "an i64",
    ir.FloatAttr: "an f64",
    ir.StringAttr: "a string",
    ir.TypeAttr: "a type",
    ir.DenseI64ArrayAttr: "an i64 array",
    ir.DenseF64ArrayAttr: "an f64 array",
}


def attribute_kind_name(kind: Any) -> str:
    """Returns how messages and the documentation name an attribute class."""
    return _KIND_NAMES[kind]


def to_attribute(kind: Any, name: str, value: Any) -> ir.Attribute:
    """Returns ``value`` as an attribute of class ``kind``.

    Raises:
        VerifyError: the value is not of the Python type that belongs to ``kind``.
    """
    accepted, convert = _FROM_PYTHON[kind]
    items: list[Any] = list(value) if kind in _ARRAYS and isinstance(value, Sequence) else [value]
    booleans = kind is ir.BoolAttr or not any(isinstance(item, bool) for item in items)
    strings = kind is ir.StringAttr or not any(isinstance(item, str) for item in items)
    if not (isinstance(value, accepted) and booleans and strings):
        fail(f"attribute {name} must be {attribute_kind_name(kind)}, got {value!r}")
    return convert(value)


def from_attribute(attribute: ir.Attribute) -> Any:
    """Returns the Python value of an attribute of one of the classes that lk ops declare."""
    if isinstance(attribute, _ARRAYS):
        return list(attribute)
    assert isinstance(attribute, tuple(_KIND_NAMES)), f"no lk op declares an attribute such as {attribute}"
    return attribute.value


_ARRAYS = (ir.DenseI64ArrayAttr, ir.DenseF64ArrayAttr)

# numbers.Integral rather than int: extents often come out of numpy arrays.
_FROM_PYTHON: dict[Any, tuple[Any, Callable[[Any], ir.Attribute]]] = {
    ir.BoolAttr: (bool, ir.BoolAttr.get),
    ir.IntegerAttr: (Integral, lambda value: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))),
    ir.FloatAttr: (Real, lambda value: ir.FloatAttr.get(ir.F64Type.get(), float(value))),
    ir.StringAttr: (str, ir.StringAttr.get),
    ir.TypeAttr: (ir.Type, ir.TypeAttr.get),
    ir.DenseI64ArrayAttr: (Sequence, lambda value: ir.DenseI64ArrayAttr.get([int(item) for item in value])),
    ir.DenseF64ArrayAttr: (Sequence, lambda value: ir.DenseF64ArrayAttr.get([float(item) for item in value])),
}
