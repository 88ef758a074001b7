"""The loop nests of the ops of the lk dialect and of tensor ops (see :mod:`.nests`)."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.spmd.certificate.graph import OPEN, Form
from lowerkit.spmd.certificate.indices import Index, number, total
from lowerkit.spmd.certificate.nests import (
    LoopKind,
    Maker,
    Nest,
    Shape,
    Shapes,
    aligned,
    joined,
    structured,
)

DYNAMIC = -(1 << 63)
"""How attributes of tensor ops spell a number that is an operand."""


def nest_of(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Returns the loop nest of an op; None where it may run on whole operands alone.

    Args:
        form: of the op.
        own: its shapes.
        before: those of the op before the split, which say what is broadcast; ``own`` where there is none.
    """
    maker = structured if form.name == "linalg.generic" else NESTS.get(form.name)
    nest = None if maker is None else maker(form, own, before)
    return nest if nest is not None and nest.fits(own) else None


# --- products -----------------------------------------------------------------------------------------------------


def _matmul(form: Form, own: Shapes, before: Shapes) -> Nest:
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


def _attention(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    query, key, value = own.operands[:3]
    if OPEN in (query[1], key[1]) or query[1] % max(key[1], 1):
        return None
    nest = Nest()
    batch, head, shared = nest.loop(query[0]), nest.loop(key[1]), nest.loop(query[1] // max(key[1], 1))
    rows = nest.loop(query[2], "opaque" if form.attributes["causal"] else "parallel")
    features, keys, outputs = (nest.loop(size, "opaque") for size in (query[3], key[2], value[3]))
    heads = total((head, query[1] // max(key[1], 1)), (shared, 1))
    nest.operands = [(batch, heads, rows, features), (batch, head, keys, features), (batch, head, keys, outputs)]
    if len(own.operands) > 3:
        mask, scores = before.operands[3], (batch, heads, rows, keys)
        whole = (*before.operands[0][:3], before.operands[1][2])
        nest.operands.append(aligned(mask, scores, whole))
    nest.results = [(batch, heads, rows, outputs)]
    return nest


def _channels(form: Form, shape: Shape) -> tuple[int, list[int]]:
    """Returns which dimension counts channels, and the spatial ones."""
    axis = len(shape) - 1 if form.attributes.get("channels_last", False) else 1
    return axis, [other for other in range(1, len(shape)) if other != axis]


def _spread(shape: Shape, batch: Index, axis: int, channels: Index, inner: Sequence[Index]) -> tuple[Index, ...]:
    """Returns the place in a tensor of images: batch, channels where the layout has them, spatial dimensions."""
    rest = iter(inner)
    return tuple(batch if number == 0 else channels if number == axis else next(rest) for number, _ in enumerate(shape))


def _conv(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    del before
    (image, taps), (result,) = own.operands, own.results
    axis, spatial = _channels(form, image)
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
        _spread(image, batch, axis, channels, read),
        (channels, made, *kernel) if transposed else (outputs, given, *kernel),
    ]
    nest.results = [_spread(result, batch, axis, outputs, written)]
    return nest


def _pool(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    image, result = own.operands[0], own.results[0]
    axis, spatial = _channels(form, image)
    nest = Nest()
    batch, channels = nest.loop(image[0]), nest.loop(image[axis])
    read = [nest.loop(image[each], "opaque") for each in spatial]
    written = [nest.loop(result[each], "opaque") for each in spatial]
    nest.operands = [_spread(image, batch, axis, channels, read)]
    nest.results = [_spread(result, batch, axis, channels, written)]
    return nest


# --- rows ---------------------------------------------------------------------------------------------------------


def _along_axis(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Softmax, sorting and running sums: apart but along their axis."""
    del before
    nest = Nest()
    axis = form.attributes["axis"]
    loops = nest.loops(own.operands[0], [axis])
    nest.operands = [tuple(loops)]
    for shape in own.results:
        last = loops[axis] if shape[axis] == own.operands[0][axis] else nest.loop(shape[axis], "opaque")
        nest.results.append((*loops[:axis], last, *loops[axis + 1 :]))
    return nest


def _rows(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    shape = own.operands[0]
    apart = len(shape) - form.attributes["normalized_rank"]
    nest = Nest()
    loops = nest.loops(shape, range(apart, len(shape)))
    nest.operands = [tuple(loops), *(tuple(loops[apart:]) for _ in own.operands[1:])]
    nest.results = [tuple(loops)]
    return nest


def _group_norm(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    del before
    shape, groups = own.operands[0], form.attributes["groups"]
    axis, spatial = _channels(form, shape)
    if shape[axis] == OPEN or shape[axis] % groups:
        return None
    nest = Nest()
    batch, group = nest.loop(shape[0]), nest.loop(groups)
    channels = total((group, shape[axis] // groups), (nest.loop(shape[axis] // groups, "opaque"), 1))
    inner = [nest.loop(shape[each], "opaque") for each in spatial]
    place = _spread(shape, batch, axis, channels, inner)
    nest.operands = [place, *((channels,) for _ in own.operands[1:])]
    nest.results = [place]
    return nest


def _rope(form: Form, own: Shapes, before: Shapes) -> Nest:
    del form
    shape = own.operands[0]
    nest = Nest()
    loops = nest.loops(shape, [len(shape) - 1])
    half = [(*loops[:-1], nest.loop(table[-1], "opaque")) for table in own.operands[1:]]
    whole = (*before.operands[0][:-1], OPEN)
    nest.operands = [tuple(loops)]
    nest.operands += [aligned(table, each, whole) for table, each in zip(before.operands[1:], half, strict=True)]
    nest.results = [tuple(loops)]
    return nest


_REDUCED: dict[str, LoopKind] = {"sum": "sum", "prod": "product", "max": "max", "min": "min"}


def _reduce(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    axes, shape = form.attributes["axes"], own.operands[0]
    kind = _REDUCED.get(form.attributes["kind"], "opaque")
    nest = Nest()
    loops = [nest.loop(size, kind if axis in axes else "parallel") for axis, size in enumerate(shape)]
    nest.operands = [tuple(loops)]
    kept = [number(0) if axis in axes else loop for axis, loop in enumerate(loops)]
    nest.results = [
        tuple(kept if form.attributes["keep_dims"] else (kept[a] for a in range(len(kept)) if a not in axes))
    ]
    return nest


def _along_parameters(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Quantization: elementwise, with parameters along one axis."""
    del before
    nest = Nest()
    loops = nest.loops(own.operands[0])
    axis = form.attributes["axis"]
    nest.operands = [tuple(loops), *((loops[axis],) if shape else () for shape in own.operands[1:])]
    nest.results = [tuple(loops)]
    return nest


# --- look-ups -----------------------------------------------------------------------------------------------------


def _gather(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    (table, indices), axis = own.operands, form.attributes["axis"]
    nest = Nest()
    outer, rows, inner = nest.loops(table[:axis]), nest.loop(table[axis], "opaque"), nest.loops(table[axis + 1 :])
    places = nest.loops(indices)
    nest.operands = [(*outer, rows, *inner), tuple(places)]
    nest.results = [(*outer, *places, *inner)]
    return nest


def _scatter(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    (table, indices, _), axis = own.operands, form.attributes["axis"]
    nest = Nest()
    outer, rows, inner = nest.loops(table[:axis]), nest.loop(table[axis], "opaque"), nest.loops(table[axis + 1 :])
    places = nest.loops(indices, range(len(indices)))
    nest.operands = [(*outer, rows, *inner), tuple(places), (*outer, *places, *inner)]
    nest.results = [(*outer, rows, *inner)]
    return nest


def _check_indices(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    del form, before
    if len(own.operands) != 2:  # of several extents each belongs to one place in the last dimension
        return None
    nest = Nest()
    nest.operands = [tuple(nest.loops(own.operands[0])), ()]
    return nest


# --- views --------------------------------------------------------------------------------------------------------


def _transpose(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    nest = Nest()
    loops = nest.loops(own.operands[0])
    moved = tuple(loops[axis] for axis in form.attributes["permutation"])
    nest.operands, nest.results, nest.unread = [tuple(loops), moved], [moved], frozenset({1})
    return nest


def _broadcast(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    nest = Nest()
    loops = nest.loops(own.results[0])
    kept = tuple(loop for axis, loop in enumerate(loops) if axis not in form.attributes["dimensions"])
    nest.operands, nest.results, nest.unread = [kept, tuple(loops)], [tuple(loops)], frozenset({1})
    return nest


def _expand(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    return _regrouped(form, own.results[0], own, before, expands=True)


def _collapse(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    return _regrouped(form, own.operands[0], own, before, expands=False)


def _regrouped(form: Form, apart: Shape, own: Shapes, before: Shapes, *, expands: bool) -> Nest | None:
    del before
    nest = Nest()
    loops = nest.loops(apart)
    together: list[Index] = []
    for group in form.attributes["reassociation"]:
        index = joined([loops[axis] for axis in group], [apart[axis] for axis in group]) if group else number(0)
        if index is None:
            return None
        together.append(index)
    places = [tuple(together), tuple(loops)]
    nest.operands, nest.results = ([places[0]], [places[1]]) if expands else ([places[1]], [places[0]])
    nest.operands += [()] * (len(own.operands) - 1)
    return nest


def _extract_slice(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    del before
    shape, result = own.operands[0], own.results[0]
    offsets, sizes, strides = (form.attributes[f"static_{name}"] for name in ("offsets", "sizes", "strides"))
    if len(shape) != len(result):
        return None
    nest = Nest()
    place: list[Index] = []
    loops: list[Index] = []
    for axis, size in enumerate(result):
        dynamic = DYNAMIC in (offsets[axis], strides[axis]) or (sizes[axis] == DYNAMIC and shape[axis] != OPEN)
        if dynamic or (shape[axis] == OPEN and (offsets[axis], strides[axis]) != (0, 1)):
            loops.append(nest.loop(size, "opaque"))
            place.append(nest.loop(shape[axis], "opaque"))
            continue
        loops.append(nest.loop(size, "opaque" if shape[axis] == OPEN else "parallel"))
        place.append(total((loops[-1], strides[axis]), (number(offsets[axis]), 1)))
    nest.operands = [tuple(place), *([()] * (len(own.operands) - 1))]
    nest.results, nest.loose = [tuple(loops)], frozenset({0})
    return nest


def _pad(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    low, high = form.attributes["static_low"], form.attributes["static_high"]
    nest = Nest()
    place: list[Index] = []
    loops: list[Index] = []
    for axis, (size, result) in enumerate(zip(own.operands[0], own.results[0], strict=True)):
        apart = (low[axis], high[axis]) == (0, 0)
        place.append(nest.loop(size, "parallel" if apart else "opaque"))
        loops.append(place[-1] if apart else nest.loop(result, "opaque"))
    nest.operands = [tuple(place), *([()] * (len(own.operands) - 1))]
    nest.results = [tuple(loops)]
    return nest


def _concat(form: Form, own: Shapes, before: Shapes) -> Nest:
    del before
    axis = form.attributes["dim"]
    nest = Nest()
    loops = nest.loops(own.results[0], [axis])
    for shape in own.operands:
        nest.operands.append((*loops[:axis], nest.loop(shape[axis], "opaque"), *loops[axis + 1 :]))
    nest.results = [tuple(loops)]
    return nest


def _same(form: Form, own: Shapes, before: Shapes) -> Nest:
    del form, before
    nest = Nest()
    shape = tuple(max(pair) for pair in zip(own.operands[0], own.results[0], strict=True))
    loops = tuple(nest.loops(shape))
    nest.operands, nest.results = [loops], [loops]
    return nest


# --- collectives along other axes of the mesh ---------------------------------------------------------------------


def _collective(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """What meets the ranks along another axis: they all have one place along the axis that is being split."""
    del before
    kind = form.attributes["kind"]
    shape, result = own.operands[0], own.results[0]
    nest = Nest()
    first = 1 if kind in ("reduce_scatter", "all_to_all") else 0
    loops = nest.loops(shape, range(first))
    nest.operands = [tuple(loops)]
    if kind in ("all_reduce", "broadcast", "reduce", "all_to_all", "receive"):
        nest.results = [tuple(loops)]
    elif kind == "all_gather":
        nest.results = [(nest.loop(result[0], "opaque"), *loops)]
    elif kind == "reduce_scatter":
        nest.results = [tuple(loops[1:])]
    else:
        return None
    return nest


NESTS: dict[str, Maker] = {
    "lk.matmul": _matmul,
    "lk.integer_matmul": _matmul,
    "lk.attention": _attention,
    "lk.conv": _conv,
    "lk.conv_transpose": _conv,
    "lk.integer_conv": _conv,
    "lk.max_pool": _pool,
    "lk.avg_pool": _pool,
    "lk.resize": _pool,
    "lk.softmax": _along_axis,
    "lk.cumulative": _along_axis,
    "lk.sort": _along_axis,
    "lk.topk": _along_axis,
    "lk.layer_norm": _rows,
    "lk.rms_norm": _rows,
    "lk.group_norm": _group_norm,
    "lk.rope": _rope,
    "lk.reduce": _reduce,
    "lk.quantize": _along_parameters,
    "lk.dequantize": _along_parameters,
    "lk.requant": _along_parameters,
    "lk.gather": _gather,
    "lk.scatter": _scatter,
    "lk.check_indices": _check_indices,
    "lk.collective_start": _collective,
    "lk.collective_done": _same,
    "linalg.transpose": _transpose,
    "linalg.broadcast": _broadcast,
    "tensor.expand_shape": _expand,
    "tensor.collapse_shape": _collapse,
    "tensor.extract_slice": _extract_slice,
    "tensor.pad": _pad,
    "tensor.concat": _concat,
    "tensor.cast": _same,
}
"""By the name of the op; ``linalg.generic`` has its maps."""

LOCAL_ATTRIBUTES: dict[str, frozenset[str]] = {
    "tensor.expand_shape": frozenset({"static_output_shape"}),
    "tensor.extract_slice": frozenset({"static_offsets", "static_sizes"}),
    "lk.conv": frozenset({"groups"}),
    "lk.integer_conv": frozenset({"groups"}),
    "lk.conv_transpose": frozenset({"groups"}),
    "lk.group_norm": frozenset({"groups"}),
}
"""Attributes that state sizes of one rank: the loop nest takes them from the op itself, so that they may differ."""
