"""The bias that is added to a product right after it, for folding into the integer sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.elementwise import Elementwise, as_elementwise, identity_map
from lowerkit.passes.quantize.parameters import Array, as_weight, scaling_of
from lowerkit.passes.rewriting import defining_op, operations, shape_of, users

_SAME = 1e-5
"""Relative difference up to which an exporter's bias scale is the product of the two scales, rounded to f32."""


@dataclass(frozen=True)
class Bias:
    """An addition of one number per output channel.

    Attributes:
        op: the addition.
        weight: name of the weight that holds the numbers.
        scale: of the exporter's int32 bias in float64; None for a bias in floats.
    """

    op: ir.Operation
    weight: str
    scale: Array | None

    def largest(self, scale: Array, context: PassContext) -> float:
        """Returns the largest magnitude in units of ``scale``; infinite for a NaN."""
        found = np.abs(context.weights.get(self.weight).reshape(-1).astype(np.float64))
        units = found / scale if self.scale is None else found * self.scale / scale
        return float(np.nan_to_num(units, nan=np.inf, posinf=np.inf).max(initial=0.0))

    def in_units(self, given: Array, scale: Array) -> Array:
        """Returns the bias in units of ``scale``, int64.

        An int32 bias whose scale is the product's own is taken as it is; any other is rounded to nearest even, an
        error of at most half a unit of the accumulator.
        """
        flat = given.reshape(-1)
        if self.scale is None:
            return np.rint(flat.astype(np.float64) / scale).astype(np.int64)
        if np.allclose(self.scale, scale, rtol=_SAME, atol=0):
            return flat.astype(np.int64)
        return np.rint(flat.astype(np.float64) * self.scale / scale).astype(np.int64)


def bias_after(op: ir.Operation, channel_axis: int, context: PassContext) -> Bias | None:
    """Returns the addition of a constant vector that alone reads the result of ``op``; None if there is none."""
    readers = users(op.results[0])
    view = as_elementwise(readers[0]) if len(readers) == 1 and readers[0].name == "linalg.generic" else None
    if view is None or len(view.inputs) != 2 or not _adds(view) or view.shape != tuple(shape_of(op.results[0])):
        return None
    place = [index for index, value in enumerate(view.inputs) if value == op.results[0]]
    if len(place) != 1 or view.maps[place[0]] != identity_map(view.rank):
        return None
    other, index_map = view.inputs[1 - place[0]], view.maps[1 - place[0]]
    loops = [loop for loop in index_map if loop is not None]
    if loops != [channel_axis]:
        return None
    return _read(view.op, other, context)


def _adds(view: Elementwise) -> bool:
    body = operations(view.body)
    return [inner.name for inner in body] == ["arith.addf", "linalg.yield"] and all(
        isinstance(operand.owner, ir.Block) for operand in body[0].operands
    )


def _read(op: ir.Operation, value: ir.Value, context: PassContext) -> Bias | None:
    source = value
    while (producer := defining_op(source)) is not None and producer.name.startswith("tensor."):
        source = producer.operands[0]
    if producer is None or producer.name != "lk.dequantize":
        name = as_weight(source, context) if producer is not None else None
        return None if name is None else Bias(op, name, None)
    scaling = scaling_of(producer, context)
    name = as_weight(producer.operands[0], context)
    if scaling is None or name is None or np.any(scaling.zero_point != 0) or scaling.unsigned:
        return None
    return Bias(op, name, scaling.scale)
