"""Gives the sums of products that a plan splits along K one order, the same for every number of ranks.

Vocabulary
    chunk     one of ``chunks`` equal parts of K, the same for every mesh; a rank has neighbouring ones
    partial   the product of one chunk, in the type in which products are summed
    tree      the sum of all partials: neighbours are added, then neighbours of these sums, up to the root

Steps for each ``lk.matmul`` that the plan splits along K among R ranks:
    1. K becomes [R, chunks / R, K / chunks], on the left by a view and a transpose, in the weight when it is stored;
    2. one product with R and chunks / R as batches gives the partials;
    3. elementwise additions over slices: the subtrees of each of the R, then what is above them.
``shard-program`` splits R: each rank makes its subtrees, one gather brings their R roots to every rank, and each adds
these in the same order. With one rank the same tree is made in one place. The module is marked ``lk.invariant``:
collectives then sum no floats, and kernels sum in an order that hangs on K alone.

Bytes: beside the product, the left operand once more, and ``2 * chunks / R + R`` results in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import MatmulOp, WeightOp
from lowerkit.dialect.types import is_float
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.rewriting import (
    DYNAMIC,
    dimension,
    element_of,
    erase_dead,
    main_block,
    operations,
    shape_of,
    weight_symbol,
)
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.invariance import is_chunked, mark_chunked, mark_invariant
from lowerkit.passes.shard.loops.products import product_axes
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.plan import ShardingPlan
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import Array, WeightStore


@dataclass(frozen=True)
class FixReductions(Pass):
    """Sums the products that ``context.sharding`` splits along K in a tree over chunks of K; nothing without a plan.

    Precondition: stage canonical, before ``shard-program`` of the same plan.

    Attributes:
        chunks: of K; a multiple of each number of ranks that is to give the same bits.

    Raises:
        UnsupportedError: LK4007, a K or the ranks do not divide; all of them at once.
    """

    name: ClassVar[str] = "fix-reductions"
    chunks: int = 8

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        if context.sharding is None:
            return False
        block = main_block(module)
        with module.context, ir.Location.unknown():
            mark_invariant(module)
            products = self._products(block, context.sharding, context.weights)
            for op in products:
                _Product(op, context.sharding.ranks, self.chunks, context.weights).rewrite()
            erase_dead(block)
        return True

    def _products(self, block: ir.Block, plan: ShardingPlan, weights: WeightStore) -> list[ir.Operation]:
        """Returns the products that the plan splits along K.

        Raises:
            UnsupportedError: LK4007, one of them has no tree.
        """
        choices = Choices(plan, weights)
        found: list[ir.Operation] = []
        problems: list[str] = []
        for op in operations(block):
            if op.name not in PRODUCTS or weight_symbol(op.operands[1]) is None or is_chunked(op):
                continue
            entry = choices.entry(op)
            if entry is None or entry.choice != "row" or not is_float(element_of(op.operands[1])):
                continue  # sums of integers are the same in any order
            if op.name != "lk.matmul":
                problems.append(f"{describe(op)}: {op.name} has no chunks ({entry.pattern!r}: {entry.choice})")
                continue
            depth = shape_of(op.operands[1])[product_axes(op)[1][0]]
            if depth % self.chunks:
                problems.append(f"{describe(op)}: K is {depth} ({entry.pattern!r}: {entry.choice})")
            found.append(op)
        if found and self.chunks % plan.ranks:
            raise UnsupportedError(
                "LK4007",
                f"{self.chunks} chunks of a sum cannot be shared by {plan.ranks} ranks of {plan.axis!r}",
                hint=f"sums that are the same on every mesh take a number of ranks that divides {self.chunks}",
            )
        if problems:
            raise UnsupportedError(
                "LK4007",
                f"{len(problems)} sums cannot be made of {self.chunks} chunks, which are the same on every mesh: "
                f"{problems[0]}",
                details=problems[1:],
                hint="give these modules the choice column or replicate, ahead of the pattern that names them",
            )
        return found


class _Product:
    """One product that becomes a tree."""

    def __init__(self, op: ir.Operation, ranks: int, chunks: int, weights: WeightStore) -> None:
        self.op, self.ranks, self.own, self.weights = op, ranks, chunks // ranks, weights
        (self.rows, self.depth), (self.weight_depth, _) = product_axes(op)
        self.kind = ir.RankedTensorType(op.results[0].type)
        batches = [len(shape_of(operand)) - 2 for operand in op.operands]
        self.missing = [max(batches) - own for own in batches]
        """Batch dimensions that a side lacks: they broadcast, and R comes in front of all of them."""

    def rewrite(self) -> None:
        """Replaces the product by its tree."""
        op = self.op
        with ir.InsertionPoint(op), op.location:
            partials = MatmulOp.build(
                self._left(),
                self._weight(),
                transpose_rhs=ir.BoolAttr(op.attributes["transpose_rhs"]).value,
                accumulate=ir.TypeAttr(op.attributes["accumulate"]).value,
                unrounded=True,
            )
            mark_chunked(partials)
            roots = _added([_slice(partials, 1, place) for place in range(self.own)], element_of(partials))
            leaves = [_slice(roots, 0, place) for place in range(self.ranks)]
            op.results[0].replace_all_uses_with(_added(leaves, self.kind.element_type))
        op.erase()

    def _left(self) -> ir.Value:
        """``[..., M, K]`` as ``[R, chunks / R, ..., M, K / chunks]``."""
        value, missing = self.op.operands[0], self.missing[0]
        shape = shape_of(value)
        depth, rank = self.depth, len(shape)
        if shape[depth] == DYNAMIC:
            known = [*shape[:depth], self._depth, *shape[depth + 1 :]]
            value = tensor.CastOp(ir.RankedTensorType.get(known, element_of(value)), value).result
            shape = known
        split = [self.ranks, self.own, shape[depth] // (self.ranks * self.own)]
        apart = [*[1] * missing, *shape[:depth], *split, *shape[depth + 1 :]]
        # Where each dimension of the value goes; for K itself, what is left of it.
        moved = [missing + axis + (2 if axis >= depth else 0) for axis in range(rank)]
        groups = [[moved[axis]] for axis in range(rank)]
        groups[depth] = [moved[depth] - 2, moved[depth] - 1, moved[depth]]
        groups[0] = [*range(missing), *groups[0]]
        sizes = [dimension(value, axis) for axis in range(rank) if shape[axis] == DYNAMIC]
        kind = ir.RankedTensorType.get(apart, element_of(value))
        expanded = tensor.ExpandShapeOp(kind, value, groups, sizes, apart).result
        batch = [*range(missing), *(moved[axis] for axis in range(rank) if axis not in (self.rows, depth))]
        order = [moved[depth] - 2, moved[depth] - 1, *batch, moved[self.rows], moved[depth]]
        return build_transpose(expanded, order)

    @property
    def _depth(self) -> int:
        return shape_of(self.op.operands[1])[self.weight_depth]

    def _weight(self) -> ir.Value:
        """The weight with K apart in front; it broadcasts along the batches of the left operand."""
        value = self.op.operands[1]
        symbol = weight_symbol(value)
        assert symbol is not None, "_products looked"
        outer = self.weights.shard(symbol)
        before = () if outer is None else outer.sizes
        shape, axis = shape_of(value), self.weight_depth
        inner = shape[axis] // (self.ranks * self.own)
        apart = [*before, *shape[:axis], self.ranks, self.own, inner, *shape[axis + 1 :]]
        local = [self.ranks, self.own, *[1] * self.missing[1], *shape[:axis], inner, *shape[axis + 1 :]]
        first = len(before)

        def chunked(array: Array) -> Array:
            moved = np.moveaxis(array.reshape(apart), (first + axis, first + axis + 1), (first, first + 1))
            return np.ascontiguousarray(moved).reshape(*before, *local)

        name = self.weights.unique_name(f"{symbol}@chunks")
        dtype, _ = self.weights.spec(symbol)
        self.weights.derive(name, [symbol], chunked, dtype=dtype, shape=[*before, *local], shard=outer)
        return WeightOp.build(name, ir.RankedTensorType.get(local, element_of(value)))


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
