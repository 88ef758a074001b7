"""The additions of a tree: which slices of the partials are added, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.rewriting import DYNAMIC, dimension, element_of, shape_of


def added_up(partials: ir.Value, ranks: int, own: int, axis: int, element: ir.Type) -> ir.Value:
    """Returns the sum over two neighbouring dimensions of a tensor, as one tree.

    Args:
        partials: ``[..., ranks, own, ...]``.
        ranks: extent of the first of the two dimensions; its subtrees are added first.
        own: extent of the second one.
        axis: of the first one.
        element: type of the result's elements; the sums are rounded to it once.

    Returns:
        ``[..., ...]``: a tensor without the two dimensions.
    """
    roots = _added([_slice(partials, axis + 1, place) for place in range(own)], element_of(partials))
    return _added([_slice(roots, axis, place) for place in range(ranks)], element)


def _slice(value: ir.Value, axis: int, place: int) -> ir.Value:
    """Returns ``value`` at ``place`` of a dimension, which vanishes; the value itself where that is all of it."""
    shape = shape_of(value)
    rank = len(shape)
    kept = [*shape[:axis], *shape[axis + 1 :]]
    part = value
    if shape[axis] > 1:
        sizes = [1 if each == axis else shape[each] for each in range(rank)]
        offsets = [place if each == axis else 0 for each in range(rank)]
        extents = [dimension(value, each) for each in range(rank) if sizes[each] == DYNAMIC]
        kind = ir.RankedTensorType.get(sizes, element_of(value))
        part = tensor.ExtractSliceOp(kind, value, [], extents, [], offsets, sizes, [1] * rank).result
    # The dimension joins the one in front of it: that is where a split one stays the outermost of its group.
    first = axis - 1 if axis else 0
    groups = [[each] for each in range(first)] + [[first, first + 1]] + [[each] for each in range(first + 2, rank)]
    return tensor.CollapseShapeOp(ir.RankedTensorType.get(kept, element_of(value)), part, groups).result


def _added(terms: Sequence[ir.Value], element: ir.Type) -> ir.Value:
    """Returns the sum of tensors of one shape as a tree over neighbours, rounded to ``element``."""
    if len(terms) == 1 and element_of(terms[0]) == element:
        return terms[0]
    shape = shape_of(terms[0])
    sizes: list[int | ir.Value] = [
        dimension(terms[0], axis) if extent == DYNAMIC else extent for axis, extent in enumerate(shape)
    ]
    identity = identity_map(len(shape))

    def write(scalars: list[ir.Value]) -> list[ir.Value]:
        level = list(scalars)
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [arith.AddFOp(left, right).result for left, right in pairs]
        return [level[0] if level[0].type == element else arith.TruncFOp(element, level[0]).result]

    made = tensor.EmptyOp(sizes, element).result
    return build_elementwise(terms, [identity] * len(terms), [made], write, ir.Location.current).results[0]
