"""The loop nests of products, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.spmd.certificate.graph import OPEN, Form
from lowerkit.spmd.certificate.indices import Index, total
from lowerkit.spmd.certificate.loop_nests.nest import Nest, Shape, Shapes, aligned


def matmul(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Batches, rows and columns run apart; the depth is summed."""
    left, (result,) = own.operands[0], own.results
    nest = Nest()
    batch = nest.loops(result[:-2])
    rows, columns = nest.loop(result[-2]), nest.loop(result[-1])
    swapped = form.attributes.get("transpose_lhs", False), form.attributes["transpose_rhs"]
    depth = nest.loop(left[-2] if swapped[0] else left[-1], "sum")
    ends = [(depth, rows) if swapped[0] else (rows, depth), (columns, depth) if swapped[1] else (depth, columns)]
    whole = before.results[0][:-2]
    for shape, end in zip(before.operands, ends, strict=True):
        nest.operands.append((*aligned(shape[:-2], batch, whole), *end))
    nest.results = [(*batch, rows, columns)]
    return nest


def attention(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Batches, heads, rows and features of the values run apart; rows that know their place (causal) do not."""
    query, key, value = own.operands[:3]
    if OPEN in (query[1], key[1]) or query[1] % max(key[1], 1):
        return None
    nest = Nest()
    batch, head, shared = nest.loop(query[0]), nest.loop(key[1]), nest.loop(query[1] // max(key[1], 1))
    rows = nest.loop(query[2], "opaque" if form.attributes["causal"] else "parallel")
    features, keys, outputs = nest.loop(query[3], "opaque"), nest.loop(key[2], "opaque"), nest.loop(value[3])
    heads = total((head, query[1] // max(key[1], 1)), (shared, 1))
    nest.operands = [(batch, heads, rows, features), (batch, head, keys, features), (batch, head, keys, outputs)]
    if len(own.operands) > 3:
        mask, scores = before.operands[3], (batch, heads, rows, keys)
        whole = (*before.operands[0][:3], before.operands[1][2])
        nest.operands.append(aligned(mask, scores, whole))
    nest.results = [(batch, heads, rows, outputs)]
    return nest


def channels_of(form: Form, shape: Shape) -> tuple[int, list[int]]:
    """Returns which dimension counts channels, and the spatial ones."""
    axis = len(shape) - 1 if form.attributes.get("channels_last", False) else 1
    return axis, [other for other in range(1, len(shape)) if other != axis]


def spread(shape: Shape, batch: Index, axis: int, channels: Index, inner: Sequence[Index]) -> tuple[Index, ...]:
    """Returns the place in a tensor of images: batch, channels where the layout has them, spatial dimensions."""
    rest = iter(inner)
    return tuple(batch if number == 0 else channels if number == axis else next(rest) for number, _ in enumerate(shape))


def conv(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Images, groups and their output channels run apart; their input channels are summed."""
    del before
    (image, taps), (result,) = own.operands, own.results
    axis, spatial = channels_of(form, image)
    groups = form.attributes["groups"]
    transposed = form.name == "lk.conv_transpose"
    if OPEN in (image[axis], result[axis]) or image[axis] % groups or result[axis] % groups:
        return None
    nest = Nest()
    batch, group = nest.loop(image[0]), nest.loop(groups)
    given, made = nest.loop(image[axis] // groups, "sum"), nest.loop(result[axis] // groups)
    read = [nest.loop(image[each], "opaque") for each in spatial]
    written = [nest.loop(result[each], "opaque") for each in spatial]
    kernel = nest.loops(taps[2:], range(len(taps) - 2))
    channels = total((group, image[axis] // groups), (given, 1))
    outputs = total((group, result[axis] // groups), (made, 1))
    nest.operands = [
        spread(image, batch, axis, channels, read),
        (channels, made, *kernel) if transposed else (outputs, given, *kernel),
    ]
    nest.results = [spread(result, batch, axis, outputs, written)]
    return nest


def pool(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Images and channels run apart."""
    del before
    image, result = own.operands[0], own.results[0]
    axis, spatial = channels_of(form, image)
    nest = Nest()
    batch, channels = nest.loop(image[0]), nest.loop(image[axis])
    read = [nest.loop(image[each], "opaque") for each in spatial]
    written = [nest.loop(result[each], "opaque") for each in spatial]
    nest.operands = [spread(image, batch, axis, channels, read)]
    nest.results = [spread(result, batch, axis, channels, written)]
    return nest
