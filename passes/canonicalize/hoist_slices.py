"""Splits a matrix product that is only read in slices: each slice gets a product with a slice of the weight.

Models compute query, key and value (or gate and up) in one product and cut the result. The cut is a copy of every
element. Cutting the weight instead costs nothing: it is done ahead of time.

Vocabulary
    slices   ``tensor.extract_slice`` ops that together are the only readers of a value, cut it along one axis only,
             with step one, and do not overlap.
    path     the ops between the product and the slices: elementwise ops and views that keep the axis.

Steps, for each such value, last op first, so that whole paths are known when their first op is met:
    1. follow the path up to an ``lk.matmul`` with a weight on the right; give up if there is none;
    2. rebuild the path once for each slice, on a sliced weight; other inputs of elementwise ops are sliced where
       the axis reaches them.

Bytes: two per element of the product are saved; the weight is read as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from lowerkit.dialect import MatmulOp
from lowerkit.mlir import ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise, build_elementwise, identity_map
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import (
    DYNAMIC,
    element_of,
    empty_like,
    erase_dead,
    main_block,
    nested_operations,
    operations,
    shape_of,
    users,
    weight_symbol,
)


@dataclass(frozen=True)
class HoistSlices(Pass):
    """Moves slices of matrix products to their weights.

    Precondition: stage raised, canonical or layout (no regions yet).

    Attributes:
        min_width: elements along the axis that each slice must have: narrower products waste vector lanes.
    """

    name: ClassVar[str] = "hoist-slices"
    min_width: int = 8

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name != "lk.matmul" or weight_symbol(op.operands[1]) is None or len(shape_of(op.operands[1])) != 2:
                continue
            changed = self._split(op) or changed
        return erase_dead(block) > 0 or changed

    def _split(self, product: ir.Operation) -> bool:
        path = _path_to_slices(product)
        if path is None:
            return False
        slices, steps, axis = path
        pieces = [_range_of(cut, axis) for cut in slices]
        if any(size < self.min_width for _, size in pieces):
            return False
        for cut, (start, size) in zip(slices, pieces, strict=True):
            with ir.InsertionPoint(cut):
                value = _narrow_product(product, start, size)
                whole = product.results[0]
                for step in steps:
                    with step.location:
                        value = _rebuild(step, whole, value, start, size)
                    whole = step.results[0]
            cut.results[0].replace_all_uses_with(value)
        return True


def _path_to_slices(product: ir.Operation) -> tuple[list[ir.Operation], list[ir.Operation], int] | None:
    """Returns (slices, ops between the product and them, axis of the slices)."""
    value = product.results[0]
    axis = len(shape_of(value)) - 1
    steps: list[ir.Operation] = []
    while True:
        readers = users(value)
        if readers and all(reader.name == "tensor.extract_slice" for reader in readers):
            return (readers, steps, axis) if len(readers) > 1 and _are_disjoint(readers, axis) else None
        if len(readers) != 1:
            return None
        next_axis = _axis_after(readers[0], value, axis)
        if next_axis is None:
            return None
        axis = next_axis
        steps.append(readers[0])
        value = readers[0].results[0]


def _axis_after(op: ir.Operation, value: ir.Value, axis: int) -> int | None:
    """Returns which dimension of the result of ``op`` is ``axis`` of its operand; None if it is not kept whole."""
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        expands = op.name == "tensor.expand_shape"
        for number, group in enumerate(reassociation_of(op)):
            if (number == axis if expands else axis in group) and len(group) == 1:
                return group[0] if expands else number
        return None
    view = as_elementwise(op) if op.name == "linalg.generic" else None
    if view is None or len(op.results) != 1 or view.inputs_read_through(value) != [identity_map(view.rank)]:
        return None
    if any(inner.name == "linalg.index" for inner in nested_operations(op)):
        return None  # the loops of a slice count from zero
    return axis


def _are_disjoint(slices: Sequence[ir.Operation], axis: int) -> bool:
    """Whether static slices of step one cut along ``axis`` only and share nothing."""
    ranges: list[tuple[int, int]] = []
    for cut in slices:
        shape = shape_of(cut.operands[0])
        if len(cut.operands) != 1 or len(shape_of(cut.results[0])) != len(shape) or shape[axis] == DYNAMIC:
            return False
        offsets, sizes, strides = (
            list(ir.DenseI64ArrayAttr(cut.attributes[name]))
            for name in ("static_offsets", "static_sizes", "static_strides")
        )
        for other, extent in enumerate(shape):
            if strides[other] != 1 or (other != axis and (offsets[other] != 0 or sizes[other] != extent)):
                return False
        ranges.append((offsets[axis], sizes[axis]))
    ranges.sort()
    return all(start + size <= following for (start, size), (following, _) in pairwise(ranges))


def _range_of(cut: ir.Operation, axis: int) -> tuple[int, int]:
    offsets = ir.DenseI64ArrayAttr(cut.attributes["static_offsets"])
    sizes = ir.DenseI64ArrayAttr(cut.attributes["static_sizes"])
    return offsets[axis], sizes[axis]


def _narrow(value: ir.Value, axis: int, start: int, size: int) -> ir.Value:
    """Slices ``value`` along one axis."""
    shape = shape_of(value)
    offsets = [start if other == axis else 0 for other in range(len(shape))]
    sizes = [size if other == axis else extent for other, extent in enumerate(shape)]
    kind = ir.RankedTensorType.get(sizes, element_of(value))
    return tensor.ExtractSliceOp(kind, value, [], [], [], offsets, sizes, [1] * len(shape)).result


def _narrow_product(product: ir.Operation, start: int, size: int) -> ir.Value:
    """Computes columns ``start`` to ``start + size`` of the product."""
    transposed = ir.BoolAttr(product.attributes["transpose_rhs"]).value
    with product.location:
        weight = _narrow(product.operands[1], 0 if transposed else 1, start, size)
        return MatmulOp.build(
            product.operands[0],
            weight,
            transpose_lhs=ir.BoolAttr(product.attributes["transpose_lhs"]).value,
            transpose_rhs=transposed,
            accumulate=ir.TypeAttr(product.attributes["accumulate"]).value,
        )


def _rebuild(step: ir.Operation, whole: ir.Value, value: ir.Value, start: int, size: int) -> ir.Value:
    """Repeats an op of the path on ``value``, a slice of its operand ``whole`` along the last dimension."""
    if step.name == "tensor.collapse_shape":
        shape = shape_of(step.results[0])
        shape[-1] = size
        kind = ir.RankedTensorType.get(shape, element_of(value))
        return tensor.CollapseShapeOp(kind, value, reassociation_of(step)).result
    if step.name == "tensor.expand_shape":
        sizes = list(ir.DenseI64ArrayAttr(step.attributes["static_output_shape"]))
        shape = shape_of(step.results[0])
        sizes[-1] = shape[-1] = size
        kind = ir.RankedTensorType.get(shape, element_of(value))
        return tensor.ExpandShapeOp(kind, value, reassociation_of(step), list(step.operands)[1:], sizes).result
    view = as_elementwise(step)
    assert view is not None
    axis = view.rank - 1
    inputs = [
        value
        if operand == whole
        else _narrow(operand, index_map.index(axis), start, size)
        if axis in index_map
        else operand
        for operand, index_map in zip(view.inputs, view.maps, strict=True)
    ]
    init = empty_like(value, list(range(view.rank)), element_of(step.results[0]))
    identity = identity_map(view.rank)
    made = build_elementwise(
        inputs, view.maps, [init], lambda scalars: view.write_body(scalars, identity), step.location
    )
    return made.results[0]
