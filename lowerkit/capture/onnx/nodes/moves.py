"""Nodes that move elements: shapes, slices, joins, padding."""

from __future__ import annotations

import itertools

import numpy as np

from lowerkit.capture.onnx.nodes.constants import counted
from lowerkit.capture.onnx.nodes.elementwise import where
from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.sizes import Size, value_of
from lowerkit.capture.onnx.nodes.torch_ops import (
    cut,
    item,
    look_up,
    pad,
    quotient,
    subtract,
    take,
)
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    add_sizes,
    binary,
    binary_scalar,
    cast,
    concatenate,
    expand,
    permute,
    product,
    size,
    sizes_of,
    slice_axis,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_build import squeeze as drop
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_int,
    int_list,
    tensor_info,
)


def reshape(node: Node) -> Results:
    """A size of 0 is that of the operand's dim, unless ``allowzero``; one of -1 is what is left."""
    value, sizes = node.operand(0), list(node.sizes(1).items)
    if not node.attribute("allowzero", 0):
        sizes = [size(value, axis) if each == 0 else each for axis, each in enumerate(sizes)]
    info, declared = node.info(0), node.declared[0]
    for axis, each in enumerate(sizes):
        if each != -1:
            continue
        rest = [other for place, other in enumerate(sizes) if place != axis]
        given = [extent for extent in info.shape if extent is not None]
        inferred = None if declared is None else declared.shape[axis]
        if inferred is not None:
            sizes[axis] = inferred
        elif len(given) == info.rank and all(isinstance(other, int) for other in rest):
            total = product(rest)
            sizes[axis] = int(np.prod(given)) // total if isinstance(total, int) and total else 0
        else:
            sizes[axis] = quotient(product(sizes_of(value)), product(rest))
    return [view(value, sizes)]


def flatten(node: Node) -> Results:
    """Joins the dims before the axis, and those from it on."""
    sizes, axis = sizes_of(node.operand(0)), node.attribute("axis", 1)
    axis = axis + len(sizes) if axis < 0 else axis
    return [view(node.operand(0), [product(sizes[:axis]), product(sizes[axis:])])]


def transpose(node: Node) -> Results:
    """Permutes dims; without an order it turns them round."""
    rank = node.info(0).rank
    return [permute(node.operand(0), node.attribute("perm", list(reversed(range(rank)))))]


def squeeze(node: Node) -> Results:
    """Drops dims of size 1: those named, or all."""
    value, info = node.operand(0), node.info(0)
    if node.has(1):
        axes = {info.normalized_axis(axis) for axis in node.integers(1)}
    elif None in info.shape:
        raise RefusalError("whether an open dim is dropped is not known")
    else:
        axes = {axis for axis, extent in enumerate(info.shape) if extent == 1}
    for axis in sorted(axes, reverse=True):
        value = drop(value, axis)
    return [value]


def unsqueeze_axes(node: Node) -> Results:
    """Inserts dims of size 1; the axes count in the result."""
    value, axes = node.operand(0), node.integers(1)
    rank = node.info(0).rank + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = unsqueeze(value, axis)
    return [value]


def concat(node: Node) -> Results:
    """Joins the operands along an axis."""
    return [concatenate(node.operands(), node.attribute("axis", 0) % node.info(0).rank)]


def slices(node: Node) -> Results:
    """Takes ``start:end:step`` along axes; of a known size positions are clamped here, else at run time."""
    value = node.operand(0)
    starts, ends = node.sizes(1).items, node.sizes(2).items
    axes = node.integers(3) if node.has(3) else list(range(len(starts)))
    steps = node.integers(4) if node.has(4) else [1] * len(starts)
    declared = node.declared[0]
    axes = map(node.info(0).normalized_axis, axes)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = tensor_info(value).shape[axis]
        if extent is not None and isinstance(start, int) and isinstance(end, int):
            value = take(value, axis, _sliced(extent, start, end, step))
        elif step < 0:
            raise RefusalError("a negative step along an open dim")
        else:
            value = cut(value, axis, start, end, step, declared.shape[axis] if declared else None)
    return [value]


def _sliced(extent: int, start: int, end: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The positions of a slice; a backward one that starts before the first element takes that, unlike Python's."""
    if step > 0 or extent == 0:
        return np.arange(extent)[slice(start, end, step)]
    first = min(max(start + extent if start < 0 else start, 0), extent - 1)
    last = min(max(end + extent if end < 0 else end, -1), extent - 1)
    return np.arange(first, last, step)


def split(node: Node) -> Results:
    """Cuts a dim into parts of given sizes, or into as many as there are results, the last of which may be shorter."""
    value, axis = node.operand(0), node.info(0).normalized_axis(node.attribute("axis", 0))
    extent, count = size(value, axis), len(node.proto.output)
    if node.has(1):
        ends = list(itertools.accumulate(node.sizes(1).items, add_sizes))
    else:
        part = quotient(add_sizes(extent, count - 1), count)
        ends = [*(product([part, place]) for place in range(1, count)), extent]
    parts: list[ir.Value] = []
    for index, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if isinstance(extent, int) and isinstance(start, int) and isinstance(end, int):
            parts.append(slice_axis(value, axis, min(start, extent), min(end, extent)))
        else:
            declared, length = node.declared[index], subtract(end, start)
            found = length if isinstance(length, int) else declared.shape[axis] if declared else None
            parts.append(cut(value, axis, start, end, 1, found))
    return parts


def expand_to(node: Node) -> Results:
    """Broadcasts both ways; an open extent is that of the result, as an assertion says, or 1 is asked for."""
    value, wanted = node.operand(0), node.sizes(1).items
    given = sizes_of(value)
    rank = max(len(given), len(wanted))
    found: list[Size] = []
    for own, asked in zip([*[1] * (rank - len(given)), *given], [*[1] * (rank - len(wanted)), *wanted], strict=True):
        if asked == 1 or own == 1:
            found.append(own if asked == 1 else asked)
        elif isinstance(own, int):
            found.append(own)
        else:
            test = build("torch.aten.ge.int", [own, value_of(asked)], [ir.Type.parse("!torch.bool")])
            message = {"message": ir.StringAttr.get("onnx.Expand broadcasts an open extent")}
            ir.Operation.create("torch.runtime.assert", operands=test, attributes=message)
            found.append(own)
    return [value if found == given else expand(value, found)]


def tile(node: Node) -> Results:
    """Repeats each dim."""
    value, info, counts = node.operand(0), node.info(0), node.sizes(1).items
    sizes = [product([own, count]) for own, count in zip(sizes_of(value), counts, strict=True)]
    result = info.with_shape([extent if isinstance(extent, int) else None for extent in sizes])
    return build("torch.aten.repeat", [value, int_list(counts)], [result.torch_type()])


def padded(node: Node) -> Results:
    """Pads with a number or with elements of the tensor; negative amounts cut off."""
    value, info = node.operand(0), node.info(0)
    amounts = node.sizes(1).items
    axes = node.integers(3) if node.has(3) else list(range(info.rank))
    sides: list[tuple[Size, Size]] = [(0, 0)] * info.rank
    for place, axis in enumerate(axes):
        sides[info.normalized_axis(axis)] = (amounts[place], amounts[len(axes) + place])
    mode = node.attribute("mode", "constant")
    if mode == "constant":
        fill = node.constant(2)
        given = fill.reshape(-1)[0].item() if fill is not None and fill.size else 0
        return [pad(value, sides, item(node.operand(2)) if node.has(2) and fill is None else given)]
    for axis, (low, high) in enumerate(sides):
        if low == high == 0:
            continue
        extent = info.shape[axis]
        if extent is not None and isinstance(low, int) and isinstance(high, int):
            kept = np.arange(extent)[max(-low, 0) : extent - max(-high, 0)]
            value = take(value, axis, np.pad(kept, (max(low, 0), max(high, 0)), mode))
        else:
            value = look_up(value, [*[None] * axis, _padded_positions(value, axis, low, high, mode)])
    return [value]


def _padded_positions(value: ir.Value, axis: int, low: Size, high: Size, mode: str) -> ir.Value:
    """Which element of an open dim stands where in the padded one; reflections reach once over the end."""
    extent = size(value, axis)
    last = subtract(extent, 1)
    places = counted(add_sizes(extent, high), subtract(0, low))
    if mode == "wrap":
        return binary_scalar("remainder", places, extent)
    if mode == "reflect":
        mirrored = build("torch.aten.abs", [places], [places.type])[0]
        distance = binary_scalar("sub", mirrored, last)
        distance = build("torch.aten.abs", [distance], [places.type])[0]
        return binary_scalar("rsub", distance, last)
    return build("torch.aten.clamp", [places, constant_int(0), value_of(last)], [places.type])[0]


def blocks(node: Node) -> Results:
    """DepthToSpace and SpaceToDepth: blocks of ``blocksize`` squared elements, which are channels, in either order."""
    value, side = node.operand(0), node.attribute("blocksize", 1)
    batch, channels, height, width = sizes_of(value)
    across = node.attribute("mode", "DCR") == "CRD"
    if node.op_type == "DepthToSpace":
        depth = quotient(channels, side * side)
        parts = [batch, depth, side, side] if across else [batch, side, side, depth]
        order = [0, 1, 4, 2, 5, 3] if across else [0, 3, 4, 1, 5, 2]
        shape = [batch, depth, product([height, side]), product([width, side])]
        return [view(permute(view(value, [*parts, height, width]), order), shape)]
    rows, columns = quotient(height, side), quotient(width, side)
    order = [0, 1, 3, 5, 2, 4] if across else [0, 3, 5, 1, 2, 4]
    shape = [batch, product([channels, side * side]), rows, columns]
    return [view(permute(view(value, [batch, channels, rows, side, columns, side]), order), shape)]


def reverse_sequence(node: Node) -> Results:
    """Reverses the first elements of each sequence, as many as its length says."""
    value, lengths = node.operand(0), unsqueeze(cast(node.operand(1), "si64"), 1)
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    order = [batch, time, *(axis for axis in range(node.info(0).rank) if axis not in (batch, time))]
    places = unsqueeze(counted(size(value, time)), 0)
    backward = binary("sub", binary_scalar("sub", lengths, 1), places)
    inside = binary("lt", places, lengths, "i1")
    places = where(inside, backward, places)
    rows = unsqueeze(counted(size(value, batch)), 1)
    found = look_up(permute(value, order), [rows, places])
    return [permute(found, [order.index(axis) for axis in range(len(order))])]


def triangle(node: Node) -> Results:
    """Keeps what lies above a diagonal, or below it."""
    name = "triu" if node.attribute("upper", 1) else "tril"
    diagonal = node.integers(1)[0] if node.has(1) else 0
    return build(f"torch.aten.{name}", [node.operand(0), constant_int(diagonal)], [node.operand(0).type])


RULES: dict[str, Rule] = {
    "Concat": concat,
    "DepthToSpace": blocks,
    "Expand": expand_to,
    "Flatten": flatten,
    "Pad": padded,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Slice": slices,
    "SpaceToDepth": blocks,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": triangle,
    "Unsqueeze": unsqueeze_axes,
}
