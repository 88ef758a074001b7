"""Writes quantize and dequantize around products: what makes a float program a quantized one.

Activations are unsigned with one scale for all elements, after smoothing where there is some; weights are symmetric
int8, -127 to 127, with one scale for each output channel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.dialect import DequantizeOp, QuantizeOp, WeightOp
from lowerkit.dialect.scalar_builder import multiply
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.quantize.parameters import as_weight, constant_parameter
from lowerkit.passes.rewriting import defining_op, element_of, empty_like, shape_of
from lowerkit.program.program import Program
from lowerkit.quantization.sites import Sites, products_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Scaling:
    """How an activation is rounded.

    Attributes:
        scale, zero_point: for 0 to 255.
        factors: f32 ``[channels]``, what the channels, its last dimension, are divided by before; None: nothing.
    """

    scale: float
    zero_point: int
    factors: Array | None = None

    def smoothed(self, values: Array) -> Array:
        """Returns an activation as it is rounded; f32."""
        return values if self.factors is None else values * self.reciprocals

    def unsmoothed(self, values: Array) -> Array:
        """Returns a rounded activation as the model has it; f32."""
        return values if self.factors is None else values * self.factors

    @property
    def reciprocals(self) -> Array:
        """What the channels are multiplied by, f32 ``[channels]``."""
        assert self.factors is not None
        return np.float32(1) / self.factors


def insert(program: Program, sites: Sites, scalings: Sequence[Scaling], in_floats: Collection[int] = ()) -> None:
    """Quantizes the operands of products.

    Args:
        program: raised; changed in place.
        sites: of the program.
        scalings: of each distinct activation.
        in_floats: places in ``sites.sites`` of the products that are left alone.
    """
    products = products_of(program.module)
    activations = QuantizedActivations(program, scalings)
    for place, site in enumerate(sites.sites):
        if place in in_floats:
            continue
        op = products[site.index]
        activation = activations.of(site.value, op)
        weight = quantized_weight(program, op, scalings[site.value])
        op.operands[0] = activation
        op.operands[1] = weight


class QuantizedActivations:
    """The distinct activations of a program, rounded: built where each is first asked for."""

    def __init__(self, program: Program, scalings: Sequence[Scaling]) -> None:
        self._program = program
        self._scalings = scalings
        self._built: dict[int, ir.Value] = {}

    def of(self, number: int, op: ir.Operation) -> ir.Value:
        """Returns activation ``number``, the left operand of ``op``, quantized and dequantized again."""
        if number not in self._built:
            value = op.operands[0]
            source = defining_op(value)
            context = PassContext(weights=self._program.weights)
            with self._program.context, ir.InsertionPoint(op), op.location if source is None else source.location:
                self._built[number] = _rounded(value, self._scalings[number], context)
        return self._built[number]


def quantized_weight(program: Program, op: ir.Operation, scaling: Scaling) -> ir.Value:
    """Builds the weight of a product before it: int8, dequantized; its largest magnitude in a channel becomes 127.

    Args:
        program: that holds ``op``.
        op: the product.
        scaling: of its activation, whose smoothing the weight undoes.
    """
    context = PassContext(weights=program.weights)
    symbol = as_weight(op.operands[1], context)
    assert symbol is not None, "find_sites took it"
    shape = shape_of(op.operands[1])
    axis = 0
    if op.name == "lk.matmul" and not ir.BoolAttr(op.attributes["transpose_rhs"]).value:
        axis = len(shape) - 1
    others = tuple(index for index in range(len(shape)) if index != axis)

    factors = scaling.factors

    def smoothed(weight: Array) -> Array:
        return weight if factors is None else weight * np.expand_dims(factors, axis)

    def scales(given: Array) -> Array:
        largest = np.abs(smoothed(given)).max(others, initial=0.0)
        return np.where(largest > 2.0**-90, largest / np.float32(127), np.float32(1)).astype(np.float32)

    def integers(given: Array) -> Array:
        steps = np.expand_dims(scales(given), others)
        return np.clip(np.rint(smoothed(given) / steps), -127, 127).astype(np.int8)

    weights = context.weights
    outputs = shape[axis]
    names = [weights.unique_name(f"{symbol}.{kind}") for kind in ("int8", "scale")]
    weights.derive(names[0], [symbol], integers, dtype="i8", shape=shape)
    weights.derive(names[1], [symbol], scales, dtype="f32", shape=[outputs])
    with program.context, ir.InsertionPoint(op), op.location:
        stored = WeightOp.build(names[0], ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(8)))
        steps = WeightOp.build(names[1], ir.RankedTensorType.get([outputs], ir.F32Type.get()))
        zero = constant_parameter(context, "zero_point", np.zeros(outputs, np.int32))
        return DequantizeOp.build(stored, steps, zero, axis=axis)


def _rounded(value: ir.Value, scaling: Scaling, context: PassContext) -> ir.Value:
    if scaling.factors is not None:
        value = _scaled(value, constant_parameter(context, "smoothing", scaling.reciprocals))
    scale = constant_parameter(context, "scale", np.array(scaling.scale, np.float32))
    zero = constant_parameter(context, "zero_point", np.array(scaling.zero_point, np.int32))
    return DequantizeOp.build(QuantizeOp.build(value, scale, zero, unsigned=True), scale, zero, unsigned=True)


def _scaled(value: ir.Value, reciprocals: ir.Value) -> ir.Value:
    """Multiplies the last dimension of a tensor by a vector."""
    rank = len(shape_of(value))
    init = empty_like(value, range(rank), element_of(value))
    maps = [identity_map(rank), (rank - 1,)]
    return build_elementwise(
        [value, reciprocals], maps, [init], lambda e: [multiply(e[0], e[1])], ir.Location.current
    ).results[0]
