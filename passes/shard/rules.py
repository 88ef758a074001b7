"""How each op runs on the ranks of an axis, given how its operands are held: pure questions, nothing is changed.

A rule gets an op and how its operands are held, and says how it wants them and how its results are held then. None:
it knows nothing better than to run whole on every rank. Types are whole ones while rules are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import nested_operations, shape_of
from lowerkit.passes.shard.shardings import PARTIAL, WHOLE, Placed, Sharding, Split, divides

Rule = Callable[[ir.Operation, Sequence[Sharding], int], Placed | None]


def placed(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Returns how an op runs that no plan names; None where nothing of it is split."""
    if not any(isinstance(sharding, Split) for sharding in given):
        return None
    rule = elementwise if op.name.startswith("linalg.") else RULES.get(op.name)
    return None if rule is None else rule(op, given, ranks)


def elementwise(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Runs along the loop that reads the split dimension; what that loop does not index stays whole."""
    view = as_elementwise(op)
    if view is None or any(inner.name == "linalg.index" for inner in nested_operations(op)):
        return None
    for sharding, index_map in zip(given, view.maps, strict=False):
        loop = index_map[sharding.axis] if isinstance(sharding, Split) else None
        if loop is None or view.shape[loop] <= 0 or view.shape[loop] % ranks:
            continue
        if any(index_map.count(loop) > 1 for index_map in view.maps):
            continue
        inputs = [Split(each.index(loop)) if loop in each else WHOLE for each in view.maps]
        # Destinations are made anew: their content is not read.
        return Placed((*inputs, *([WHOLE] * len(view.inits))), Split(loop))
    return None


def matmul(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Batches and rows of the left side run apart; so do batches of the right side."""
    left, right = given
    result = shape_of(op.results[0])
    shapes = [shape_of(operand) for operand in op.operands]
    pads = [len(result) - len(shape) for shape in shapes]
    for side, sharding in enumerate((left, right)):
        if not isinstance(sharding, Split):
            continue
        batch = sharding.axis + pads[side]
        if batch < len(result) - 2:
            return Placed(tuple(_batch(shapes[each], batch - pads[each]) for each in (0, 1)), Split(batch))
    rows, columns = product_axes(op)
    if left == Split(rows[0]):
        return Placed((left, WHOLE), Split(len(result) - 2))
    if right == Split(columns[1]):
        return Placed((WHOLE, right), Split(len(result) - 1))
    if left == Split(rows[1]) and right == Split(columns[0]):
        return Placed((left, right), PARTIAL)
    return None


def _batch(shape: Sequence[int], axis: int) -> Sharding:
    return WHOLE if axis < 0 or shape[axis] == 1 else Split(axis)


def product_axes(op: ir.Operation) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns which dimensions of the left side are (M, K), and of the right side (K, N)."""
    ranks = [len(shape_of(operand)) for operand in op.operands]
    sides: list[tuple[int, int]] = []
    for rank, name in zip(ranks, ("transpose_lhs", "transpose_rhs"), strict=True):
        swapped = ir.BoolAttr(op.attributes[name]).value
        sides.append((rank - 1, rank - 2) if swapped else (rank - 2, rank - 1))
    return sides[0], sides[1]


def attention(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Heads run apart, and batches; queries of one head need all keys of theirs."""
    query = given[0]
    if not isinstance(query, Split) or query.axis > 1 or not divides(op.operands[1], query.axis, ranks):
        return None
    masks = [mask_sharding(shape_of(mask), query.axis) for mask in list(op.operands)[3:]]
    return Placed((query, query, query, *masks), query)


def mask_sharding(shape: Sequence[int], axis: int) -> Sharding:
    """Returns how the mask of an attention is held whose scores are split along ``axis`` of 4."""
    own = axis - (4 - len(shape))
    return WHOLE if own < 0 or shape[own] == 1 else Split(own)


def rope(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """All dimensions but the last run apart; tables that are broadcast stay whole."""
    del ranks
    value = given[0]
    rank = len(shape_of(op.operands[0]))
    if not isinstance(value, Split) or value.axis == rank - 1:
        return None
    tables = [_aligned(shape_of(table), value.axis, rank) for table in list(op.operands)[1:]]
    return Placed((value, *tables), value)


def _aligned(shape: Sequence[int], axis: int, rank: int) -> Sharding:
    own = axis - (rank - len(shape))
    return WHOLE if own < 0 or shape[own] == 1 else Split(own)


def along_rows(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Softmax and norms: rows run apart."""
    del ranks
    value, rank = given[0], len(shape_of(op.operands[0]))
    if not isinstance(value, Split):
        return None
    if "axis" in op.attributes:
        apart = value.axis != ir.IntegerAttr(op.attributes["axis"]).value
    else:
        apart = value.axis < rank - ir.IntegerAttr(op.attributes["normalized_rank"]).value
    return Placed((value, *([WHOLE] * (len(given) - 1))), value) if apart else None


def reduce(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """What is not reduced runs apart; a sum over what is split is a term of the sum."""
    del ranks
    value = given[0]
    if not isinstance(value, Split):
        return None
    axes = list(ir.DenseI64ArrayAttr(op.attributes["axes"]))
    if value.axis in axes:
        return Placed((value,), PARTIAL) if ir.StringAttr(op.attributes["kind"]).value == "sum" else None
    kept = ir.BoolAttr(op.attributes["keep_dims"]).value
    return Placed((value,), Split(value.axis if kept else value.axis - sum(axis < value.axis for axis in axes)))


def expand(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """A split dimension becomes several: the outermost of them is split."""
    value = given[0]
    if not isinstance(value, Split):
        return None
    shape = shape_of(op.results[0])
    group = reassociation_of(op)[value.axis]
    outermost = next((axis for axis in group if shape[axis] != 1), group[0])
    if not divides(op.results[0], outermost, ranks):
        return None
    return Placed((value, *([WHOLE] * (len(given) - 1))), Split(outermost))


def collapse(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """The split dimension joins others: it must be the outermost of them."""
    del ranks
    value = given[0]
    if not isinstance(value, Split):
        return None
    shape = shape_of(op.operands[0])
    number, group = next((number, group) for number, group in enumerate(reassociation_of(op)) if value.axis in group)
    if any(shape[axis] != 1 for axis in group if axis < value.axis):
        return None
    return Placed((value,), Split(number))


def extract_slice(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """A slice that keeps the split dimension whole."""
    del ranks
    value, shape = given[0], shape_of(op.operands[0])
    if not isinstance(value, Split) or len(shape_of(op.results[0])) != len(shape):
        return None
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("static_offsets", "static_sizes", "static_strides")
    )
    axis = value.axis
    if (offsets[axis], sizes[axis], strides[axis]) != (0, shape[axis], 1):
        return None
    return Placed((value, *([WHOLE] * (len(given) - 1))), value)


def concat(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """Dimensions that are not joined run apart."""
    del ranks
    value = next(sharding for sharding in given if isinstance(sharding, Split))
    if value.axis == ir.IntegerAttr(op.attributes["dim"]).value:
        return None
    return Placed(tuple([value] * len(given)), value)


def same(op: ir.Operation, given: Sequence[Sharding], ranks: int) -> Placed | None:
    """A cast changes what is known of a shape, where that is not of the split dimension."""
    value = given[0]
    if not isinstance(value, Split) or not divides(op.results[0], value.axis, ranks):
        return None
    return Placed((value,), value)


RULES: dict[str, Rule] = {
    "lk.matmul": matmul,
    "lk.attention": attention,
    "lk.rope": rope,
    "lk.softmax": along_rows,
    "lk.layer_norm": along_rows,
    "lk.rms_norm": along_rows,
    "lk.reduce": reduce,
    "tensor.expand_shape": expand,
    "tensor.collapse_shape": collapse,
    "tensor.extract_slice": extract_slice,
    "tensor.concat": concat,
    "tensor.cast": same,
}
"""By the name of the op. Elementwise ops of linalg have :func:`elementwise`."""
