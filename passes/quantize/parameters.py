"""What passes over quantization read of the IR: constants, and the parameters of quantize and dequantize ops.

Scales and zero points are small and are read; the data of weights is not, it is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.dialect import WeightOp
from lowerkit.dialect.types import element_type, numpy_dtype
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.rewriting import constant_of, defined_by, weight_symbol

Array = np.ndarray[Any, Any]

_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


@dataclass(frozen=True)
class Scaling:
    """The parameters of a quantize or dequantize op, known at compile time.

    Attributes:
        scale: float64, rank 0 or along ``axis``; what f32 makes of it, positive and finite.
        zero_point: int64 of the same shape.
        axis: the dimension of the parameters.
        unsigned: how the stored bits are read.
    """

    scale: Array
    zero_point: Array
    axis: int
    unsigned: bool

    @property
    def per_tensor(self) -> bool:
        """Whether one scale and zero point hold for all elements."""
        return self.scale.ndim == 0

    def equals(self, other: Scaling) -> bool:
        """Whether both stand for the same numbers, bit for bit."""
        return (
            self.unsigned == other.unsigned
            and (self.per_tensor or self.axis == other.axis)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


def scaling_of(op: ir.Operation, context: PassContext) -> Scaling | None:
    """Returns the parameters of ``lk.quantize`` or ``lk.dequantize``; None where they are not usable constants."""
    scale, zero_point = (small_constant(op.operands[index], context) for index in (1, 2))
    if scale is None or zero_point is None:
        return None
    rounded = scale.astype(np.float32).astype(np.float64)
    if not (np.all(np.isfinite(rounded)) and np.all(rounded > 0)):
        return None
    return Scaling(
        rounded,
        zero_point.astype(np.int64),
        ir.IntegerAttr(op.attributes["axis"]).value,
        ir.BoolAttr(op.attributes["unsigned"]).value,
    )


def small_constant(value: ir.Value, context: PassContext) -> Array | None:
    """Returns the data of a constant of rank 0 or 1, None for what is computed."""
    kind = ir.RankedTensorType(value.type)
    if kind.rank > 1:
        return None
    symbol = weight_symbol(value)
    if symbol is not None:
        return np.asarray(context.weights.get(symbol))
    attribute = constant_of(value)
    return None if attribute is None else dense_array(attribute)


def dense_array(attribute: ir.Attribute) -> Array | None:
    """Returns the data of a dense attribute."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    kind = ir.RankedTensorType(attribute.type)
    dtype = numpy_dtype(kind.element_type)
    if attribute.is_splat:
        splat: Any = attribute.get_splat_value()
        return np.full(tuple(kind.shape), splat.value, dtype)
    return np.array(attribute, dtype).reshape(tuple(kind.shape))


def as_weight(value: ir.Value, context: PassContext) -> str | None:
    """Returns the name of the weight that holds a constant; an ``arith.constant`` becomes one. Looks through views.

    The name stands for the data in its own shape, which a view may have changed.
    """
    while any((view := defined_by(value, name)) is not None for name in _VIEWS):
        assert view is not None
        value = view.operands[0]
    symbol = weight_symbol(value)
    if symbol is not None:
        return symbol
    attribute = constant_of(value)
    array = None if attribute is None else dense_array(attribute)
    if array is None:
        return None
    name = context.weights.unique_name("constant")
    context.weights.add(name, array)
    return name


def derived(
    context: PassContext,
    stem: str,
    parents: Sequence[str],
    function: Callable[..., Array],
    *,
    dtype: str,
    shape: Sequence[int],
) -> ir.Value:
    """Builds a derived weight at the current insertion point."""
    name = context.weights.unique_name(stem)
    context.weights.derive(name, parents, function, dtype=dtype, shape=shape)
    element = {"f32": ir.F32Type.get, "f64": ir.F64Type.get}.get(dtype)
    kind = ir.IntegerType.get_signless(int(dtype[1:])) if element is None else element()
    return WeightOp.build(name, ir.RankedTensorType.get(list(shape), kind))


def constant_parameter(context: PassContext, stem: str, array: Array) -> ir.Value:
    """Builds a parameter: a constant for a number, a weight for a vector."""
    if array.ndim:
        name = context.weights.unique_name(stem)
        context.weights.add(name, array)
        return WeightOp.build(name, ir.RankedTensorType.get(array.shape, element_type(array.dtype)))
    kind = ir.RankedTensorType.get([], element_type(array.dtype))
    dense = ir.DenseElementsAttr.get(np.ascontiguousarray(array).reshape(()), type=kind.element_type, shape=())
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": dense}).result
