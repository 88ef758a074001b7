"""One product, a matrix product or a convolution, that becomes the sum of its chunks.

``ranks`` and ``own`` count the chunks: those of a rank are neighbours. Where K does not divide by the chunks, both
operands get zeros behind its end.
"""

from __future__ import annotations

from lowerkit.dialect import MatmulOp
from lowerkit.mlir import ir, tensor
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.rewriting import DYNAMIC, clone_op, dimension, element_of, shape_of
from lowerkit.passes.shard.chunked_weights import chunk_size, padded, weight_in_chunks
from lowerkit.passes.shard.invariance import mark_chunked
from lowerkit.passes.shard.loops.products import product_axes
from lowerkit.passes.shard.sum_trees import added_up
from lowerkit.program.weights import WeightStore


def depth_of(op: ir.Operation) -> int:
    """Returns K of a product with a weight: of a convolution, the input channels of a group."""
    weight = shape_of(op.operands[1])
    if op.name == "lk.matmul":
        return weight[product_axes(op)[1][0]]
    return weight[_input_axis(op)] // (_groups(op) if op.name == "lk.conv_transpose" else 1)


def why_no_chunks(op: ir.Operation) -> str:
    """Returns why a product of floats cannot be made of chunks; ``""`` where it can."""
    if op.name == "lk.matmul":
        return ""
    if op.name not in ("lk.conv", "lk.conv_transpose"):
        return f"{op.name} has no chunks"
    return f"{op.name} of {_groups(op)} groups has no chunks" if _groups(op) > 1 else ""


def sum_chunks(op: ir.Operation, ranks: int, chunks: int, weights: WeightStore) -> None:
    """Replaces a product of floats by the sum of its chunks."""
    made = _Matrices if op.name == "lk.matmul" else _Convolution
    with ir.InsertionPoint(op), op.location:
        op.results[0].replace_all_uses_with(made(op, ranks, chunks // ranks, weights).summed())
    op.erase()


class _Matrices:
    """K becomes [R, chunks / R, K / chunks], and the first two of these are batches."""

    def __init__(self, op: ir.Operation, ranks: int, own: int, weights: WeightStore) -> None:
        self.op, self.ranks, self.own, self.weights = op, ranks, own, weights
        (self.rows, self.depth), (self.weight_depth, _) = product_axes(op)
        batches = [len(shape_of(operand)) - 2 for operand in op.operands]
        self.missing = [max(batches) - each for each in batches]
        """Batch dimensions that a side lacks: they broadcast, and R comes in front of all of them."""
        self.size = chunk_size(depth_of(op), ranks * own)

    def summed(self) -> ir.Value:
        """Returns the sum of the chunks."""
        op = self.op
        counts = (self.ranks, self.own)
        partials = MatmulOp.build(
            self._left(),
            weight_in_chunks(
                op.operands[1], self.weight_depth, counts, self.size, self.missing[1], self.weights, joined=False
            ),
            transpose_rhs=ir.BoolAttr(op.attributes["transpose_rhs"]).value,
            accumulate=ir.TypeAttr(op.attributes["accumulate"]).value,
            unrounded=True,
        )
        mark_chunked(partials)
        return added_up(partials, self.ranks, self.own, 0, element_of(op.results[0]))

    def _left(self) -> ir.Value:
        """``[..., M, K]`` as ``[R, chunks / R, ..., M, K / chunks]``."""
        value, missing = self.op.operands[0], self.missing[0]
        shape = shape_of(value)
        depth, rank = self.depth, len(shape)
        if shape[depth] == DYNAMIC:
            known = [*shape[:depth], depth_of(self.op), *shape[depth + 1 :]]
            value = tensor.CastOp(ir.RankedTensorType.get(known, element_of(value)), value).result
        value = padded(value, depth, self.size * self.ranks * self.own)
        shape = shape_of(value)
        apart = [*[1] * missing, *shape[:depth], self.ranks, self.own, self.size, *shape[depth + 1 :]]
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


class _Convolution:
    """Chunks of the input channels are groups, each with output channels of its own."""

    def __init__(self, op: ir.Operation, ranks: int, own: int, weights: WeightStore) -> None:
        self.op, self.ranks, self.own, self.weights = op, ranks, own, weights
        # Kernels take channels of two bytes by twos where a group has an even number of them.
        step = 2 if ir.ShapedType(op.operands[0].type).element_type.width == 16 else 1
        self.size = chunk_size(depth_of(op), ranks * own, step)
        last = ir.BoolAttr(op.attributes["channels_last"]).value
        self.channels = len(shape_of(op.operands[0])) - 1 if last else 1

    def summed(self) -> ir.Value:
        """Returns the sum of the chunks."""
        op, chunks = self.op, self.ranks * self.own
        operands = [padded(op.operands[0], self.channels, chunks * self.size), self._filter()]
        copy = clone_op(op, dict(zip(op.operands, operands, strict=True)))
        integer = ir.IntegerAttr(op.attributes["groups"]).type
        copy.attributes["groups"] = ir.IntegerAttr.get(integer, chunks)
        sums = ir.TypeAttr(op.attributes["accumulate"]).value
        kind = ir.RankedTensorType(op.results[0].type)
        shape = list(kind.shape)
        outputs = shape[self.channels]
        shape[self.channels] = chunks * outputs
        copy.results[0].set_type(ir.RankedTensorType.get(shape, sums))
        mark_chunked(copy.results[0])
        return added_up(self._apart(copy.results[0], outputs), self.ranks, self.own, self.channels, kind.element_type)

    def _filter(self) -> ir.Value:
        """``[Cout, Cin, ...]`` as ``[chunks * Cout, Cin / chunks, ...]``; that of a transposed one counts Cin first."""
        axis = _input_axis(self.op)
        counts = (self.ranks, self.own)
        return weight_in_chunks(self.op.operands[1], axis, counts, self.size, 0, self.weights, joined=True)

    def _apart(self, partials: ir.Value, outputs: int) -> ir.Value:
        """Returns the result of all chunks with R, chunks / R and the output channels as dimensions."""
        shape, axis = shape_of(partials), self.channels
        apart = [*shape[:axis], self.ranks, self.own, outputs, *shape[axis + 1 :]]
        groups = [[each if each < axis else each + 2] for each in range(len(shape))]
        groups[axis] = [axis, axis + 1, axis + 2]
        sizes = [dimension(partials, each) for each in range(len(shape)) if shape[each] == DYNAMIC]
        kind = ir.RankedTensorType.get(apart, element_of(partials))
        return tensor.ExpandShapeOp(kind, partials, groups, sizes, apart).result


def _groups(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["groups"]).value


def _input_axis(op: ir.Operation) -> int:
    """Which dimension of a filter counts input channels."""
    return 0 if op.name == "lk.conv_transpose" else 1
