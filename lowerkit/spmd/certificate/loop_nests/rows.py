"""The loop nests of what works on rows, of reductions, quantization and look-ups."""

from __future__ import annotations

from lowerkit.spmd.certificate.graph import OPEN, Form
from lowerkit.spmd.certificate.indices import number, total
from lowerkit.spmd.certificate.loop_nests.nest import LoopKind, Nest, Shapes, aligned
from lowerkit.spmd.certificate.loop_nests.products import channels_of, spread


def along_axis(form: Form, own: Shapes, before: Shapes) -> Nest:
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


def rows(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Norms over the last dimensions."""
    del before
    shape = own.operands[0]
    apart = len(shape) - form.attributes["normalized_rank"]
    nest = Nest()
    loops = nest.loops(shape, range(apart, len(shape)))
    nest.operands = [tuple(loops), *(tuple(loops[apart:]) for _ in own.operands[1:])]
    nest.results = [tuple(loops)]
    return nest


def group_norm(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Images and groups run apart."""
    del before
    shape, groups = own.operands[0], form.attributes["groups"]
    axis, spatial = channels_of(form, shape)
    if shape[axis] == OPEN or shape[axis] % groups:
        return None
    nest = Nest()
    batch, group = nest.loop(shape[0]), nest.loop(groups)
    channels = total((group, shape[axis] // groups), (nest.loop(shape[axis] // groups, "opaque"), 1))
    inner = [nest.loop(shape[each], "opaque") for each in spatial]
    place = spread(shape, batch, axis, channels, inner)
    nest.operands = [place, *((channels,) for _ in own.operands[1:])]
    nest.results = [place]
    return nest


def rope(form: Form, own: Shapes, before: Shapes) -> Nest:
    """All dimensions but the last one run apart."""
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


def reduce(form: Form, own: Shapes, before: Shapes) -> Nest:
    """What is not reduced runs apart; what is, by its kind."""
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


def along_parameters(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Quantization: elementwise, with parameters along one axis."""
    del before
    nest = Nest()
    loops = nest.loops(own.operands[0])
    axis = form.attributes["axis"]
    nest.operands = [tuple(loops), *((loops[axis],) if shape else () for shape in own.operands[1:])]
    nest.results = [tuple(loops)]
    return nest


def gather(form: Form, own: Shapes, before: Shapes) -> Nest:
    """All runs apart but the dimension that is looked up."""
    del before
    (table, indices), axis = own.operands, form.attributes["axis"]
    nest = Nest()
    outer, rows, inner = nest.loops(table[:axis]), nest.loop(table[axis], "opaque"), nest.loops(table[axis + 1 :])
    places = nest.loops(indices)
    nest.operands = [(*outer, rows, *inner), tuple(places)]
    nest.results = [(*outer, *places, *inner)]
    return nest


def scatter(form: Form, own: Shapes, before: Shapes) -> Nest:
    """The dimensions beside the indexed one run apart."""
    del before
    (table, indices, _), axis = own.operands, form.attributes["axis"]
    nest = Nest()
    outer, rows, inner = nest.loops(table[:axis]), nest.loop(table[axis], "opaque"), nest.loops(table[axis + 1 :])
    places = nest.loops(indices, range(len(indices)))
    nest.operands = [(*outer, rows, *inner), tuple(places), (*outer, *places, *inner)]
    nest.results = [(*outer, rows, *inner)]
    return nest


def check_indices(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Indices are checked one by one."""
    del form, before
    if len(own.operands) != 2:  # of several extents each belongs to one place in the last dimension
        return None
    nest = Nest()
    nest.operands = [tuple(nest.loops(own.operands[0])), ()]
    return nest
