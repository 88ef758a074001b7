"""Pushing transposes through the views ``tensor.expand_shape`` and ``tensor.collapse_shape``.

Each function gets an op, writes its replacement at the current insertion point and returns the values that take the
place of its results, or None where it must stay.
"""

from __future__ import annotations

from lowerkit.mlir import ir, tensor
from lowerkit.passes.layout.transposes import build_transpose, is_identity, untransposed
from lowerkit.passes.rewriting import DYNAMIC, element_of, shape_of


def reassociation_of(op: ir.Operation) -> list[list[int]]:
    """Returns the groups of dimensions of an expand or collapse."""
    return [
        [ir.IntegerAttr(axis).value for axis in ir.ArrayAttr(group)]
        for group in ir.ArrayAttr(op.attributes["reassociation"])
    ]


def push_expand(op: ir.Operation) -> list[ir.Value] | None:
    """Expands the source of a transpose; the transpose then moves the groups."""
    source, permutation = untransposed(op.operands[0])
    if is_identity(permutation):
        return None
    groups = reassociation_of(op)
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_output_shape"]))
    unknown = iter(list(op.operands)[1:])
    extents: list[int | ir.Value] = [next(unknown) if size == DYNAMIC else size for size in sizes]
    group_of_source = {permutation[axis]: group for axis, group in enumerate(groups)}
    new_groups: list[list[int]] = []
    order: list[int] = []  # dimension of the new expansion -> dimension of the old result
    for axis in range(len(permutation)):
        old = group_of_source[axis]
        new_groups.append(list(range(len(order), len(order) + len(old))))
        order.extend(old)
    shape = shape_of(op.results[0])
    kind = ir.RankedTensorType.get([shape[axis] for axis in order], element_of(source))
    dynamic = [extent for axis in order if isinstance(extent := extents[axis], ir.Value)]
    expanded = tensor.ExpandShapeOp(kind, source, new_groups, dynamic, [sizes[axis] for axis in order]).result
    return [build_transpose(expanded, [order.index(axis) for axis in range(len(order))])]


def push_collapse(op: ir.Operation) -> list[ir.Value] | None:
    """Collapses the source of a transpose, after making each group contiguous there."""
    source, permutation = untransposed(op.operands[0])
    if is_identity(permutation):
        return None
    groups = reassociation_of(op)
    stored = [[permutation[axis] for axis in group] for group in groups]
    extents = shape_of(source)

    def innermost(group: int) -> int:
        return max([axis for axis in stored[group] if extents[axis] != 1] or stored[group])

    # A group goes where its last stored dimension is: what was innermost stays innermost.
    order = sorted(range(len(groups)), key=innermost)
    gather = [axis for group in order for axis in stored[group]]
    if is_identity(order) and not is_identity(gather):
        return None  # the whole transpose is needed before the collapse
    gathered = build_transpose(source, gather)
    new_groups: list[list[int]] = []
    position = 0
    for group in order:
        new_groups.append(list(range(position, position + len(groups[group]))))
        position += len(groups[group])
    shape = shape_of(op.results[0])
    kind = ir.RankedTensorType.get([shape[group] for group in order], element_of(source))
    collapsed = tensor.CollapseShapeOp(kind, gathered, new_groups).result
    return [build_transpose(collapsed, [order.index(group) for group in range(len(groups))])]
