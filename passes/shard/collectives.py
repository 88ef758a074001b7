"""From one way of holding a tensor to another, by the collective that it takes.

Bytes, of a tensor of n bytes on p ranks, that each rank sends: a reduction of terms 2n(p - 1)/p, slices made whole
n(p - 1)/p, terms reduced into slices n(p - 1)/p, slices along another dimension n(p - 1)/p^2. A start stands right
behind what makes its operand, a done before its first reader.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from lowerkit.dialect import CollectiveDoneOp, CollectiveStartOp
from lowerkit.mlir import ir, tensor
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.rewriting import DYNAMIC, defining_op, dimension, element_of, shape_of
from lowerkit.passes.shard.plan import Collective, ShardingPlan
from lowerkit.passes.shard.shardings import Partial, Split
from lowerkit.passes.source_location import describe


@dataclass(frozen=True)
class Collectives:
    """Builds the collectives along the axis of a plan; each is written down in its report."""

    plan: ShardingPlan

    def reduced(self, term: ir.Value, held: Partial, before: ir.Operation) -> ir.Value:
        """Returns the reduction of the ranks' terms, for readers from ``before`` on."""
        with _behind(term):
            pending = self._start(term, "all_reduce", held.reduction)
        with ir.InsertionPoint(before), _location(term):
            return CollectiveDoneOp.build(pending)

    def gathered(self, part: ir.Value, split: Split, before: ir.Operation) -> ir.Value:
        """Returns the tensor whose slices along ``split.axis`` the ranks hold, for readers from ``before`` on."""
        with _behind(part):
            pending = self._start(part, "all_gather")
        with ir.InsertionPoint(before), _location(part):
            return _join_first(CollectiveDoneOp.build(pending), split.axis)

    def scattered(self, term: ir.Value, held: Partial, split: Split, before: ir.Operation) -> ir.Value:
        """Returns this rank's slice along ``split.axis`` of the reduction of the ranks' terms."""
        with _behind(term):
            pending = self._start(_cut_first(term, split.axis, self.plan.ranks), "reduce_scatter", held.reduction)
        with ir.InsertionPoint(before), _location(term):
            return CollectiveDoneOp.build(pending)

    def exchanged(self, part: ir.Value, held: Split, wanted: Split, before: ir.Operation) -> ir.Value:
        """Returns this rank's slice along ``wanted.axis`` of the tensor whose slices along ``held.axis`` they hold."""
        with _behind(part):
            pending = self._start(_cut_first(part, wanted.axis, self.plan.ranks), "all_to_all")
        with ir.InsertionPoint(before), _location(part):
            return _join_first(CollectiveDoneOp.build(pending), held.axis)

    def _start(self, value: ir.Value, kind: str, reduction: str = "sum") -> ir.Value:
        owner = defining_op(value)
        place = "" if owner is None else str(describe(owner))
        self.plan.report.collectives.append(Collective(kind, str(value.type), place))
        axis, ranks = self.plan.axis, self.plan.ranks
        return CollectiveStartOp.build(value, kind=kind, axis=axis, ranks=ranks, reduction=reduction)


@contextmanager
def _behind(value: ir.Value) -> Generator[None]:
    """Lets ops be built right behind what makes a value, with its location."""
    owner = defining_op(value)
    assert owner is not None, "an argument is whole"
    with ir.InsertionPoint.after(owner), owner.location:
        yield


def _location(value: ir.Value) -> ir.Location:
    owner = defining_op(value)
    assert owner is not None, "an argument is whole"
    return owner.location


def _join_first(stacked: ir.Value, axis: int) -> ir.Value:
    """Joins the first dimension, which counts slices, with dimension ``axis`` of a slice."""
    rank = len(shape_of(stacked)) - 1
    moved = build_transpose(stacked, [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)])
    shape = shape_of(moved)
    groups = [[place] for place in range(axis)] + [[axis, axis + 1]] + [[place + 1] for place in range(axis + 1, rank)]
    joined = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
    return tensor.CollapseShapeOp(ir.RankedTensorType.get(joined, element_of(moved)), moved, groups).result


def _cut_first(value: ir.Value, axis: int, ranks: int) -> ir.Value:
    """Cuts dimension ``axis`` into ``ranks`` slices, which a new first dimension counts."""
    shape = shape_of(value)
    rank = len(shape)
    groups = [[place] for place in range(axis)] + [[axis, axis + 1]] + [[place + 1] for place in range(axis + 1, rank)]
    apart = [*shape[:axis], ranks, shape[axis] // ranks, *shape[axis + 1 :]]
    sizes = [dimension(value, place) for place in range(rank) if shape[place] == DYNAMIC]
    kind = ir.RankedTensorType.get(apart, element_of(value))
    expanded = tensor.ExpandShapeOp(kind, value, groups, sizes, apart).result
    return build_transpose(expanded, [axis, *range(axis), *range(axis + 1, rank + 1)])
