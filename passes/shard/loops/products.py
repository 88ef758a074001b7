"""The loops of products: matrices, convolutions, attention."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import shape_of
from lowerkit.passes.shard.loops.nest import Index, Loops, Nest, Stated, aligned


def product_axes(op: ir.Operation) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns which dimensions of the left side of a product are (M, K), and of the right side (K, N)."""
    ranks = [len(shape_of(operand)) for operand in op.operands]
    sides: list[tuple[int, int]] = []
    for rank, name in zip(ranks, ("transpose_lhs", "transpose_rhs"), strict=True):
        swapped = name in op.attributes and ir.BoolAttr(op.attributes[name]).value
        sides.append((rank - 1, rank - 2) if swapped else (rank - 2, rank - 1))
    return sides[0], sides[1]


def matmul(op: ir.Operation) -> Nest:
    """``lk.matmul`` and ``lk.integer_matmul``: batches broadcast, K is summed."""
    left, right = op.operands
    (rows, depth), (right_depth, columns) = product_axes(op)
    loops = Loops()
    batches = loops.each(shape_of(op.results[0])[:-2])
    m, n, k = (
        loops.add(shape_of(left)[rows]),
        loops.add(shape_of(right)[columns]),
        loops.add(shape_of(left)[depth], "sum"),
    )
    first = _matrices(left, batches, {rows: m, depth: k})
    second = _matrices(right, batches, {right_depth: k, columns: n})
    return loops.nest(op, [first, second], [(*batches, m, n)])


def _matrices(value: ir.Value, batches: Sequence[Index], own: dict[int, Index]) -> tuple[Index, ...]:
    shape = shape_of(value)
    lead = batches[len(batches) - (len(shape) - 2) :]
    broadcast = [() if extent == 1 else index for extent, index in zip(shape[:-2], lead, strict=True)]
    return (*broadcast, *(own[axis] for axis in (len(shape) - 2, len(shape) - 1)))


def conv(op: ir.Operation) -> Nest:
    """``lk.conv`` and ``lk.integer_conv``: input channels are summed; windows overlap.

    With groups, channels join the number of the group and that within it.
    """
    return _convolution(op, filter_axes=(0, 1))


def conv_transpose(op: ir.Operation) -> Nest:
    """``lk.conv_transpose``: the filter counts input channels first, and output channels of one group."""
    return _convolution(op, filter_axes=(1, 0))


def _convolution(op: ir.Operation, filter_axes: tuple[int, int]) -> Nest:
    """A convolution whose filter has output channels at ``filter_axes[0]`` and input channels at ``filter_axes[1]``.

    Of both, the one that the filter has first counts the channels of all groups.
    """
    groups, shape = ir.IntegerAttr(op.attributes["groups"]).value, shape_of(op.operands[1])
    loops = Loops()
    batch, group = loops.add(shape_of(op.results[0])[0]), loops.add(groups)
    out_axis, in_axis = filter_axes
    per_group = [shape[0] // groups, shape[1]]
    made, read = loops.add(per_group[out_axis]), loops.add(per_group[in_axis], "sum")
    channels = {out_axis: made, in_axis: read}
    kernel = loops.each(shape[2:], opaque=range(len(shape) - 2))
    source, target = (
        loops.each(_spatial(op, value), opaque=range(len(shape) - 2)) for value in (op.operands[0], op.results[0])
    )
    last = ir.BoolAttr(op.attributes["channels_last"]).value
    stated = [Stated("groups", None, group[0])] if group else []
    return loops.nest(
        op,
        [
            _image(batch, (*group, *read), source, last=last),
            ((*group, *channels[0]), channels[1], *kernel),
        ],
        [_image(batch, (*group, *made), target, last=last)],
        stated,
    )


def _spatial(op: ir.Operation, value: ir.Value) -> list[int]:
    shape = shape_of(value)
    return shape[1:-1] if ir.BoolAttr(op.attributes["channels_last"]).value else shape[2:]


def _image(batch: Index, channels: Index, spatial: Sequence[Index], *, last: bool) -> tuple[Index, ...]:
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


def attention(op: ir.Operation) -> Nest:
    """``lk.attention``: batches and heads run apart; a query head joins the key head that it reads and its place there.

    Queries run apart where no triangle counts them; features of the values do.
    """
    query, key, value = (shape_of(operand) for operand in list(op.operands)[:3])
    causal = ir.BoolAttr(op.attributes["causal"]).value
    loops = Loops()
    batch, head = loops.add(query[0]), loops.add(key[1])
    sharing = loops.add(query[1] // key[1]) if min(query[1], key[1]) > 0 else loops.add(query[1], "opaque")
    rows, columns = loops.add(query[2], "opaque" if causal else "parallel"), loops.add(key[2], "opaque")
    depth, features = loops.add(query[3], "opaque"), loops.add(value[3])
    heads = (*head, *sharing)
    scores = (batch, heads, rows, columns)
    masks = [aligned(mask, scores) for mask in list(op.operands)[3:]]
    return loops.nest(
        op,
        [(batch, heads, rows, depth), (batch, head, columns, depth), (batch, head, columns, features), *masks],
        [(batch, heads, rows, features)],
    )
