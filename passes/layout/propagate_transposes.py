"""Moves transposes from the operands of ops to their results, until they meet their inverse and vanish.

Vocabulary: an op is *pushed through* when it is rewritten to read the sources of transposes and its result is
transposed instead. Pushing never adds a transpose on its own: all operands that count must carry the same one.

Steps: ops are visited once, in program order, so an op finds the transposes of its operands already moved:
    elementwise        loops in the order in which the sources are stored; broadcast operands change their index maps
    reduce, softmax    the axes are renamed
    pool               the spatial dimensions are renamed
    concat, pad, slice the axis, paddings and offsets are renamed; every input must carry the transpose
    expand_shape       the source is expanded, the transpose then moves whole groups
    collapse_shape     groups that are contiguous in the source are collapsed there; a group that is not (a channel
                       shuffle) is made contiguous first, if the rest of the transpose then moves whole groups
    transpose          both become one; the identity and moves of unit extents cost nothing
    matmul             a swap of the last two dimensions becomes a flag
Where sums are to have one order on every mesh, ops that add floats stay where they are.

Bytes: each pair that meets saves two loads and two stores per element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import IndexMap, as_elementwise, build_elementwise, compose
from lowerkit.passes.layout.transposed_moves import (
    push_concat,
    push_matmul,
    push_pad,
    push_pool,
    push_reduce,
    push_slice,
    push_softmax,
)
from lowerkit.passes.layout.transposed_views import push_collapse, push_expand
from lowerkit.passes.layout.transposes import (
    build_transpose,
    inverse,
    is_identity,
    is_transpose,
    moves_units_only,
    permutation_of,
    untransposed,
)
from lowerkit.passes.rewriting import (
    element_of,
    empty_like,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
    weight_symbol,
)
from lowerkit.passes.shard.invariance import sums_in_layout


@dataclass(frozen=True)
class PropagateTransposes(Pass):
    """Pushes transposes down and cancels them.

    Precondition: stage canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "propagate-transposes"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            push = _PUSHES.get(op.name)
            if push is None or sums_in_layout(op):
                continue
            with ir.InsertionPoint(op), op.location:
                values = push(op)
            if values is not None:
                replace(op, values)
                changed = True
        return erase_dead(block) > 0 or changed


def push_transpose(op: ir.Operation) -> list[ir.Value] | None:
    """Joins a transpose with the one before it; drops it where it moves nothing."""
    permutation = permutation_of(op)
    if not is_transpose(op.operands[0]) and not moves_units_only(shape_of(op.operands[0]), permutation):
        return None
    return [build_transpose(op.operands[0], permutation)]


def push_elementwise(op: ir.Operation) -> list[ir.Value] | None:
    """Runs the loops of an elementwise op in the order in which its transposed operands are stored."""
    view = as_elementwise(op)
    if view is None or view.op.name != "linalg.generic" or view.rank < 2:
        return None
    sources = [untransposed(value) for value in view.inputs]
    wide = [loop for loop in range(view.rank) if view.shape[loop] != 1]
    orders: set[tuple[int, ...]] = set()
    maps: list[IndexMap] = []
    for (_, permutation), index_map, value in zip(sources, view.maps, view.inputs, strict=True):
        stored = tuple(index_map[axis] for axis in inverse(permutation))
        maps.append(stored)
        walked = tuple(loop for loop in stored if loop is not None and loop in wide)
        if sorted(walked) == wide and weight_symbol(value) is None:
            orders.add(walked)
    if len(orders) != 1:
        return None
    walked = iter(orders.pop())
    order = [next(walked) if loop in wide else loop for loop in range(view.rank)]  # loops of one stay in place
    if is_identity(order):
        return None
    moved = tuple(inverse(order))  # old loop -> new loop
    like = view.inits[0]
    inits = [empty_like(like, order, element_of(result)) for result in op.results]
    rewritten = build_elementwise(
        [source for source, _ in sources],
        [compose(index_map, moved) for index_map in maps],
        inits,
        lambda scalars: view.write_body(scalars, moved),
        op.location,
    )
    return [build_transpose(result, moved) for result in rewritten.results]


_PUSHES: dict[str, Callable[[ir.Operation], list[ir.Value] | None]] = {
    "linalg.transpose": push_transpose,
    "linalg.generic": push_elementwise,
    "lk.reduce": push_reduce,
    "lk.softmax": push_softmax,
    "lk.max_pool": push_pool,
    "lk.avg_pool": push_pool,
    "lk.matmul": push_matmul,
    "tensor.concat": push_concat,
    "tensor.pad": push_pad,
    "tensor.extract_slice": push_slice,
    "tensor.expand_shape": push_expand,
    "tensor.collapse_shape": push_collapse,
}
