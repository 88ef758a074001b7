"""The part of its own that a rank takes of what every rank knows: weights, constants, activations.

Bytes: weights are cut when they are stored, so each rank reads its own part; a part of an activation is a copy.
"""

from __future__ import annotations

import numpy as np

from lowerkit.dialect import GatherOp, WeightOp
from lowerkit.mlir import arith, ir, linalg
from lowerkit.passes.rewriting import defining_op, element_of, empty_like, shape_of, tensor_type, weight_symbol
from lowerkit.passes.shard.shardings import Shared, Split, local_type, parts_of
from lowerkit.program.dtypes import name_of
from lowerkit.program.weights import Array, Shard, WeightStore


class OwnParts:
    """Makes the parts of the ranks along one axis of a mesh, at the current insertion point."""

    def __init__(self, weights: WeightStore, shard: Shard) -> None:
        self._weights = weights
        self._shard = shard
        self._names: dict[tuple[str, int | bytes], str] = {}

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self._shard.ranks

    def of(self, value: ir.Value, split: Split | Shared) -> ir.Value:
        """Returns a rank's slice of a value that every rank has whole.

        A weight whose extent does not divide gets zeros behind its end; nothing else may have such an extent.
        """
        owner = defining_op(value)
        kind = ir.RankedTensorType(local_type(value, split, self._shard.ranks))
        symbol = weight_symbol(value)
        if symbol is not None and isinstance(split, Split):
            return WeightOp.build(self._weight(symbol, shape_of(value), split.axis), kind)
        if owner is not None and owner.name == "arith.constant":
            constant = ir.DenseElementsAttr(owner.attributes["value"])
            if constant.is_splat:
                return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, constant.get_splat_value())).result
        if owner is not None and owner.name == "linalg.fill":
            return linalg.fill(owner.operands[0], outs=[local_empty(value, split, self._shard.ranks)])
        parts = parts_of(split, self._shard.ranks)
        places = np.arange(shape_of(value)[split.axis], dtype=np.int64).reshape(parts, -1)
        own = np.arange(self._shard.ranks) * parts // self._shard.ranks
        return GatherOp.build(value, self.row_of("places", places[own]), axis=split.axis)

    def row_of(self, stem: str, rows: Array) -> ir.Value:
        """Returns ``rows[r]`` at rank r: what depends on the rank is data, a weight that the ranks share."""
        key = (f"{stem}.{rows.dtype}.{rows.shape}", rows.tobytes())
        if key not in self._names:
            name = self._names[key] = self._weights.unique_name(f"{stem}@{self._shard.label}")
            dtype = name_of(rows.dtype)
            self._weights.derive(name, (), lambda: rows, dtype=dtype, shape=rows.shape, shard=self._shard)
        element = ir.IntegerType.get_signless(rows.dtype.itemsize * 8)
        return WeightOp.build(self._names[key], ir.RankedTensorType.get(list(rows.shape[1:]), element))

    def _weight(self, symbol: str, shape: list[int], axis: int) -> str:
        """Returns the name of the weight that holds the slices of ``symbol`` along ``axis``, stacked.

        A weight that the ranks along other axes share already is cut in each of its parts.
        """
        if (symbol, axis) not in self._names:
            ranks, outer = self._shard.ranks, self._weights.shard(symbol)
            before = () if outer is None else outer.sizes
            dtype, _ = self._weights.spec(symbol)
            size, place = -(-shape[axis] // ranks), len(before) + axis
            apart = [*before, *shape[:axis], ranks, size, *shape[axis + 1 :]]
            padding = [(0, 0)] * (len(before) + len(shape))
            padding[place] = (0, ranks * size - shape[axis])
            name = self._names[symbol, axis] = self._weights.unique_name(f"{symbol}@{self._shard.label}.{axis}")

            def stacked(array: Array) -> Array:
                padded = np.pad(array.reshape(*before, *shape), padding) if shape[axis] % ranks else array
                return np.ascontiguousarray(np.moveaxis(padded.reshape(apart), place, len(before)))

            parts = [*before, ranks, *shape[:axis], size, *shape[axis + 1 :]]
            shard = Shard((*(() if outer is None else outer.axes), *self._shard.axes))
            self._weights.derive(name, [symbol], stacked, dtype=dtype, shape=parts, shard=shard)
        return self._names[symbol, axis]


def local_empty(value: ir.Value, split: Split | Shared, ranks: int) -> ir.Value:
    """Builds a ``tensor.empty`` for what one rank holds of ``value``."""
    kind = tensor_type(value)
    assert kind is not None, "only tensors are split"
    whole = empty_like(value, list(range(kind.rank)), element_of(value))
    whole.set_type(local_type(whole, split, ranks))
    return whole
