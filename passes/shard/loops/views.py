"""The loops of ops that move elements and compute nothing: views, parts, states, collectives along other axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.mlir import ir
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import DYNAMIC, captured_values, nested_operations, shape_of
from lowerkit.passes.shard.loops.nest import Index, Loops, Nest, Stated


def expand(op: ir.Operation) -> Nest:
    """One dimension becomes several: the outermost of them that is not one is the outermost of its loops."""
    loops = Loops()
    result = loops.each(shape_of(op.results[0]))
    stated = [Stated("static_output_shape", axis, index[0]) for axis, index in enumerate(result) if index]
    return loops.nest(op, [_joined(op, result)], [result], stated)


def collapse(op: ir.Operation) -> Nest:
    """Several dimensions become one."""
    loops = Loops()
    source = loops.each(shape_of(op.operands[0]))
    return loops.nest(op, [source], [_joined(op, source)])


def _joined(op: ir.Operation, parts: Sequence[Index]) -> tuple[Index, ...]:
    return tuple(sum((parts[axis] for axis in group), ()) for group in reassociation_of(op))


def cast(op: ir.Operation) -> Nest:
    """What is known of a shape changes; an extent that either side knows is known."""
    loops = Loops()
    known = [max(pair) for pair in zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)]
    indices = loops.each(known)
    return loops.nest(op, [indices], [indices])


def extract_slice(op: ir.Operation) -> Nest:
    """Dimensions that the slice has whole run apart."""
    loops = Loops()
    whole = shape_of(op.operands[0])
    source = loops.each(whole, _cut(op, whole))
    result, axes = _part(op, source, shape_of(op.results[0]))
    return loops.nest(op, [source], [result], _sizes(source, axes))


def insert_slice(op: ir.Operation) -> Nest:
    """Dimensions that the slice has whole run apart."""
    loops = Loops()
    whole = shape_of(op.operands[1])
    target = loops.each(whole, _cut(op, whole))
    part, axes = _part(op, target, shape_of(op.operands[0]))
    return loops.nest(op, [part, target], [target], _sizes(target, axes))


def _cut(op: ir.Operation, whole: Sequence[int]) -> list[int]:
    """Returns the dimensions of which a slice has a part, or of which that is not known."""
    given = zip(*(list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in _SLICE), strict=True)
    return [axis for axis, found in enumerate(given) if found != (0, whole[axis], 1) or whole[axis] == DYNAMIC]


def _part(op: ir.Operation, whole: Sequence[Index], shape: Sequence[int]) -> tuple[tuple[Index, ...], list[int]]:
    """Returns the index of each dimension of a slice, and which dimensions of the whole these are.

    A slice may leave out dimensions of size one; the others follow each other in order.
    """
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    axes: list[int] = []
    for axis, size in enumerate(sizes):
        left, needed = len(sizes) - axis, len(shape) - len(axes)
        if needed and (left == needed or size != 1 or shape[len(axes)] == 1):
            axes.append(axis)
    return tuple(whole[axis] for axis in axes), axes


_SLICE = ("offsets", "sizes", "strides")


def _sizes(whole: Sequence[Index], axes: Sequence[int]) -> list[Stated]:
    return [Stated("static_sizes", axis, whole[axis][0]) for axis in axes if whole[axis]]


def concat(op: ir.Operation) -> Nest:
    """All dimensions but the joined one run apart."""
    dim, loops = ir.IntegerAttr(op.attributes["dim"]).value, Loops()
    shapes = [shape_of(operand) for operand in op.operands]
    result = loops.each([max(extents) for extents in zip(*shapes, strict=True)], [dim])
    return loops.nest(op, [result] * len(shapes), [result])


def pad(op: ir.Operation) -> Nest | None:
    """Dimensions without padding run apart."""
    if captured_values(op) and any(inner.name != "tensor.yield" for inner in nested_operations(op)):
        return None
    low, high = (list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("static_low", "static_high"))
    loops = Loops()
    source = loops.each(
        shape_of(op.operands[0]), [axis for axis in range(len(low)) if (low[axis], high[axis]) != (0, 0)]
    )
    target = shape_of(op.results[0])
    result = tuple(() if target[axis] == 1 else index for axis, index in enumerate(source))
    return loops.nest(op, [source], [result])


def same(op: ir.Operation) -> Nest:
    """Every dimension runs apart."""
    loops = Loops()
    value = op.operands[0] if len(op.operands) else op.results[0]
    indices = loops.each(shape_of(value))
    return loops.nest(op, [indices] * len(op.operands), [indices] * len(op.results))


def collective_start(op: ir.Operation) -> Nest:
    """A collective along another axis: each rank of this one does it on its slice."""
    kind, ranks = ir.StringAttr(op.attributes["kind"]).value, ir.IntegerAttr(op.attributes["ranks"]).value
    loops = Loops()
    if kind == "all_gather":
        source = loops.each(shape_of(op.operands[0]))
        return loops.nest(op, [source], [(loops.add(ranks, "opaque"), *source)])
    counted = kind in ("reduce_scatter", "all_to_all")
    source = loops.each(shape_of(op.operands[0]), [0] if counted else [])
    if kind == "send":
        return loops.nest(op, [source], [loops.each(shape_of(op.results[0]))])
    return loops.nest(op, [source], [source[1:] if kind == "reduce_scatter" else source])


VIEWS: dict[str, Callable[[ir.Operation], Nest | None]] = {
    "tensor.expand_shape": expand,
    "tensor.collapse_shape": collapse,
    "tensor.cast": cast,
    "tensor.extract_slice": extract_slice,
    "tensor.insert_slice": insert_slice,
    "tensor.concat": concat,
    "tensor.pad": pad,
    "lk.state_read": same,
    "lk.state_write": same,
    "lk.collective_start": collective_start,
    "lk.collective_done": same,
}
"""By the name of the op."""
