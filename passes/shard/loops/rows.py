"""The loops of ops that need all of some dimensions at once and run apart along the others."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import shape_of
from lowerkit.passes.shard.loops.nest import Kind, Loops, Nest, Stated, aligned

_REDUCED: dict[str, Kind] = {"sum": "sum", "prod": "product", "max": "max", "min": "min"}


def along_axis(op: ir.Operation) -> Nest:
    """Softmax, orders, running reductions: all of ``axis`` at once, or of the normalized dimensions, the last ones."""
    shape = shape_of(op.operands[0])
    if "axis" in op.attributes:
        opaque = [_integer(op, "axis")]
    else:
        opaque = list(range(len(shape) - _integer(op, "normalized_rank"), len(shape)))
    loops = Loops()
    indices = loops.each(shape, opaque)
    parameters = [aligned(value, indices) for value in list(op.operands)[1:]]
    return loops.nest(op, [indices, *parameters], [indices] * len(op.results))


def group_norm(op: ir.Operation) -> Nest:
    """Samples and groups run apart; channels join the number of the group and that within it."""
    shape, groups = shape_of(op.operands[0]), _integer(op, "groups")
    last = ir.BoolAttr(op.attributes["channels_last"]).value
    channel = len(shape) - 1 if last else 1
    loops = Loops()
    group = loops.add(groups)
    inner = loops.add(shape[channel] // groups if shape[channel] > 0 else shape[channel], "opaque")
    spatial = [axis for axis in range(1, len(shape)) if axis != channel]
    own = {channel: (*group, *inner), 0: loops.add(shape[0])}
    own.update({axis: loops.add(shape[axis], "opaque") for axis in spatial})
    indices = tuple(own[axis] for axis in range(len(shape)))
    parameters = [(own[channel],)] * (len(op.operands) - 1)
    stated = [Stated("groups", None, group[0])] if group else []
    return loops.nest(op, [indices, *parameters], [indices], stated)


def windows(op: ir.Operation) -> Nest:
    """Pools and resizing: samples and channels run apart, spatial dimensions are needed whole."""
    shape, rank = shape_of(op.operands[0]), len(shape_of(op.operands[0]))
    last = ir.BoolAttr(op.attributes["channels_last"]).value
    spatial = range(1, rank - 1) if last else range(2, rank)
    loops = Loops()
    source = loops.each(shape, spatial)
    target = loops.each([shape_of(op.results[0])[axis] for axis in spatial], range(len(spatial)))
    sizes = dict(zip(spatial, target, strict=True))
    return loops.nest(op, [source], [tuple(sizes.get(axis, source[axis]) for axis in range(rank))])


def reduce(op: ir.Operation) -> Nest:
    """What is not reduced runs apart; what is reduced gives terms, where terms of that kind can be joined."""
    shape, axes = shape_of(op.operands[0]), list(ir.DenseI64ArrayAttr(op.attributes["axes"]))
    kind = _REDUCED.get(ir.StringAttr(op.attributes["kind"]).value, "opaque")
    loops = Loops()
    indices = tuple(loops.add(extent, kind if axis in axes else "parallel") for axis, extent in enumerate(shape))
    kept = ir.BoolAttr(op.attributes["keep_dims"]).value
    result = [() if axis in axes else index for axis, index in enumerate(indices) if kept or axis not in axes]
    return loops.nest(op, [indices], [tuple(result)])


def gather(op: ir.Operation) -> Nest:
    """Positions run apart, and so do all dimensions of the table but the indexed one."""
    axis = _integer(op, "axis")
    loops = Loops()
    table = loops.each(shape_of(op.operands[0]), [axis])
    positions = loops.each(shape_of(op.operands[1]))
    return loops.nest(op, [table, positions], [(*table[:axis], *positions, *table[axis + 1 :])])


def scatter(op: ir.Operation) -> Nest:
    """All dimensions of the table but the indexed one run apart; updates of one place follow each other."""
    axis, indices = _integer(op, "axis"), shape_of(op.operands[1])
    loops = Loops()
    table = loops.each(shape_of(op.operands[0]), [axis])
    positions = loops.each(indices, range(len(indices)))
    return loops.nest(op, [table, positions, (*table[:axis], *positions, *table[axis + 1 :])], [table])


def check_indices(op: ir.Operation) -> Nest:
    """Indices are checked apart; several extents lie along the last dimension."""
    shape = shape_of(op.operands[0])
    loops = Loops()
    return loops.nest(op, [loops.each(shape, [] if len(op.operands) == 2 else [len(shape) - 1])], [])


def rope(op: ir.Operation) -> Nest:
    """All dimensions but the last run apart; tables broadcast."""
    shape = shape_of(op.operands[0])
    loops = Loops()
    indices = loops.each(shape, [len(shape) - 1])
    return loops.nest(op, [indices, *(aligned(table, indices) for table in list(op.operands)[1:])], [indices])


def per_channel(op: ir.Operation) -> Nest:
    """Quantization: elements run apart; parameters lie along ``axis`` where they are not one for all."""
    loops = Loops()
    indices = loops.each(shape_of(op.operands[0]))
    axis = _integer(op, "axis")
    parameters = [(indices[axis],) if shape_of(value) else () for value in list(op.operands)[1:]]
    return loops.nest(op, [indices, *parameters], [indices])


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


ROWS: dict[str, Callable[[ir.Operation], Nest]] = {
    "lk.softmax": along_axis,
    "lk.layer_norm": along_axis,
    "lk.rms_norm": along_axis,
    "lk.sort": along_axis,
    "lk.topk": along_axis,
    "lk.cumulative": along_axis,
    "lk.group_norm": group_norm,
    "lk.max_pool": windows,
    "lk.avg_pool": windows,
    "lk.resize": windows,
    "lk.reduce": reduce,
    "lk.gather": gather,
    "lk.scatter": scatter,
    "lk.check_indices": check_indices,
    "lk.rope": rope,
    "lk.quantize": per_channel,
    "lk.dequantize": per_channel,
    "lk.requant": per_channel,
}
"""By the name of the op."""
