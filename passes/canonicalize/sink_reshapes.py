"""Moves views from the inputs of elementwise ops to their results, so that an anchor and its epilogue agree on shape.

``matmul [B*S, N] -> expand [B, S, N] -> add bias -> gelu`` becomes ``matmul -> add bias -> gelu -> expand``: the
elementwise op then has the anchor's shape and can be its epilogue. The other inputs are viewed the other way, which
moves no bytes; an input that is already such a view is read at its source.

Steps, in program order, for each elementwise op that reads an expand or collapse of a computed value:
    1. every other input must be viewable: it indexes a group of loops whole and in order, or not at all;
    2. the op is rewritten on the shape before the view;
    3. its results are viewed as before; the next elementwise op finds the view at its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import Elementwise, IndexMap, as_elementwise, build_elementwise, identity_map
from lowerkit.passes.fuse.anchors import is_anchor
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import (
    DYNAMIC,
    defining_op,
    dimension,
    element_of,
    empty_like,
    erase_dead,
    main_block,
    nested_operations,
    operations,
    replace,
    shape_of,
)

_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})


@dataclass(frozen=True)
class SinkReshapes(Pass):
    """Moves views below elementwise ops.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "sink-reshapes"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            view = as_elementwise(op) if op.name == "linalg.generic" else None
            if view is None or any(inner.name == "linalg.index" for inner in nested_operations(op)):
                continue
            reshape = _view_to_sink(view)
            if reshape is not None:
                with ir.InsertionPoint(op), op.location:
                    values = _rewrite(view, reshape)
                if values is not None:
                    replace(op, values)
                    changed = True
        return erase_dead(block) > 0 or changed


def _view_to_sink(view: Elementwise) -> ir.Operation | None:
    """Returns the view of an anchor's or elementwise op's value that ``view`` reads in its own order.

    Of several the last input's wins; the others become views of views, which fold.
    """
    for value, index_map in zip(reversed(view.inputs), reversed(view.maps), strict=True):
        reshape = defining_op(value)
        if reshape is None or reshape.name not in _VIEWS or index_map != identity_map(view.rank):
            continue
        source = defining_op(reshape.operands[0])
        if source is not None and (is_anchor(source) or as_elementwise(source) is not None):
            return reshape
    return None


def _rewrite(view: Elementwise, reshape: ir.Operation) -> list[ir.Value] | None:
    groups = reassociation_of(reshape)
    source = reshape.operands[0]
    expanding = reshape.name == "tensor.collapse_shape"  # going back over a collapse expands the other inputs
    inputs: list[ir.Value] = []
    maps: list[IndexMap] = []
    plans = []
    for index_map in view.maps:
        plan = _plan_expansion(index_map, groups) if expanding else _plan_collapse(index_map, groups, view.shape)
        if plan is None:
            return None
        plans.append(plan)
    for value, old_map, (own_groups, new_map) in zip(view.inputs, view.maps, plans, strict=True):
        if value == reshape.results[0] and old_map == identity_map(view.rank):
            inputs.append(source)
            maps.append(identity_map(len(shape_of(source))))
            continue
        if all(len(group) == 1 for group in own_groups):
            inputs.append(value)
        elif expanding:
            inputs.append(_expand(value, own_groups, new_map, source))
        else:
            inputs.append(_collapse(value, own_groups))
        maps.append(new_map)
    axes = list(range(len(shape_of(source))))
    inits = [empty_like(source, axes, element_of(result)) for result in view.op.results]
    identity = identity_map(view.rank)
    made = build_elementwise(inputs, maps, inits, lambda scalars: view.write_body(scalars, identity), view.op.location)
    return [_view_again(reshape, result, groups) for result in made.results]


def _plan_expansion(index_map: IndexMap, groups: Sequence[Sequence[int]]) -> tuple[list[list[int]], IndexMap] | None:
    """For each dimension of an input the dimensions it expands to, and the map of the expanded input."""
    own: list[list[int]] = []
    new_map: list[int | None] = []
    for loop in index_map:
        loops: Sequence[int | None] = [None] if loop is None else groups[loop]
        own.append(list(range(len(new_map), len(new_map) + len(loops))))
        new_map.extend(loops)
    return own, tuple(new_map)


def _plan_collapse(
    index_map: IndexMap, groups: Sequence[Sequence[int]], shape: Sequence[int]
) -> tuple[list[list[int]], IndexMap] | None:
    """Groups the dimensions of an input that collapse into one, and the map of the collapsed input."""
    group_of = {loop: number for number, group in enumerate(groups) for loop in group}
    own: list[list[int]] = []
    new_map: list[int | None] = []
    axis = 0
    while axis < len(index_map):
        loop = index_map[axis]
        number = None if loop is None else group_of.get(loop)  # a source of rank 0 has no groups: all extents are 1
        if number is None or (shape[index_map[axis] or 0] == 1 and len(groups[number]) > 1):
            own.append([axis])  # an extent of one: index 0 whatever the loop is
            is_taken = number is None or number in new_map or _has_wide_loop(groups[number], shape)
            new_map.append(None if is_taken else number)
            axis += 1
            continue
        wanted = [member for member in groups[number] if shape[member] != 1]
        taken = [axis]
        while len(taken) < len(wanted) and axis + len(taken) < len(index_map):
            taken.append(axis + len(taken))
        if [index_map[member] for member in taken] != (wanted or [loop]):
            return None
        own.append(taken)
        new_map.append(number)
        axis += len(taken)
    return own, tuple(new_map)


def _has_wide_loop(group: Sequence[int], shape: Sequence[int]) -> bool:
    return any(shape[loop] != 1 for loop in group)


def _collapse(value: ir.Value, groups: list[list[int]]) -> ir.Value:
    """Collapses ``value``; reads through an expansion by the same groups."""
    op = defining_op(value)
    if op is not None and op.name == "tensor.expand_shape" and reassociation_of(op) == groups:
        return op.operands[0]
    shape = shape_of(value)
    sizes = [_product([shape[axis] for axis in group]) for group in groups]
    return tensor.CollapseShapeOp(ir.RankedTensorType.get(sizes, element_of(value)), value, groups).result


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        if extent == DYNAMIC:
            return DYNAMIC
        total *= extent
    return total


def _expand(value: ir.Value, groups: list[list[int]], new_map: IndexMap, like: ir.Value) -> ir.Value:
    """Expands ``value``, or reads through a collapse of that shape.

    The extent of a dimension is that of ``like`` along the loop that indexes it.
    """
    shape = shape_of(like)
    sizes = [1 if loop is None else shape[loop] for loop in new_map]
    for group, extent in zip(groups, shape_of(value), strict=True):
        if extent == 1:
            for axis in group:
                sizes[axis] = 1
    op = defining_op(value)
    if op is not None and op.name == "tensor.collapse_shape" and reassociation_of(op) == groups:
        # The same groups may have other extents: 16 is 1 x 16 and 4 x 4. Two unknown ones leave that open.
        known = all([sizes[axis] for axis in group].count(DYNAMIC) <= 1 for group in groups)
        if known and shape_of(op.operands[0]) == sizes:
            return op.operands[0]
    dynamic = [
        dimension(like, loop) for loop, size in zip(new_map, sizes, strict=True) if size == DYNAMIC and loop is not None
    ]
    kind = ir.RankedTensorType.get(sizes, element_of(value))
    return tensor.ExpandShapeOp(kind, value, groups, dynamic, sizes).result


def _view_again(reshape: ir.Operation, value: ir.Value, groups: list[list[int]]) -> ir.Value:
    """Applies ``reshape`` to another value of the same shape."""
    kind = ir.RankedTensorType.get(shape_of(reshape.results[0]), element_of(value))
    if reshape.name == "tensor.collapse_shape":
        return tensor.CollapseShapeOp(kind, value, groups).result
    sizes = ir.DenseI64ArrayAttr(reshape.attributes["static_output_shape"])
    return tensor.ExpandShapeOp(kind, value, groups, list(reshape.operands)[1:], list(sizes)).result
