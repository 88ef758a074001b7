"""The loop nests of views, and of collectives along other axes of the mesh."""

from __future__ import annotations

from lowerkit.spmd.certificate.graph import OPEN, Form
from lowerkit.spmd.certificate.indices import Index, number, total
from lowerkit.spmd.certificate.loop_nests.nest import Nest, Shape, Shapes, joined

DYNAMIC = -(1 << 63)
"""How attributes of tensor ops spell a number that is an operand."""


def transpose(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Dimensions in another order."""
    del before
    nest = Nest()
    loops = nest.loops(own.operands[0])
    moved = tuple(loops[axis] for axis in form.attributes["permutation"])
    nest.operands, nest.results, nest.unread = [tuple(loops), moved], [moved], frozenset({1})
    return nest


def broadcast(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Dimensions that the operand does not have are repeated."""
    del before
    nest = Nest()
    loops = nest.loops(own.results[0])
    kept = tuple(loop for axis, loop in enumerate(loops) if axis not in form.attributes["dimensions"])
    nest.operands, nest.results, nest.unread = [kept, tuple(loops)], [tuple(loops)], frozenset({1})
    return nest


def expand(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """A dimension becomes several."""
    return _regrouped(form, own.results[0], own, before, expands=True)


def collapse(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Several dimensions become one."""
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


def extract_slice(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Known offsets are followed; a dimension with another one is opaque."""
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


def insert_slice(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Dimensions that the slice has whole run apart; it may leave out dimensions of one element."""
    del before
    part, whole = own.operands[0], own.operands[1]
    offsets, sizes, strides = (form.attributes[f"static_{name}"] for name in ("offsets", "sizes", "strides"))
    nest = Nest()
    inner: list[Index] = []
    outer: list[Index] = []
    for axis, extent in enumerate(whole):
        apart = extent != OPEN and (offsets[axis], sizes[axis], strides[axis]) == (0, extent, 1)
        outer.append(nest.loop(extent, "parallel" if apart else "opaque"))
        left, needed = len(whole) - axis, len(part) - len(inner)
        if needed and (left == needed or sizes[axis] != 1 or part[len(inner)] == 1):
            inner.append(outer[-1] if apart else nest.loop(part[len(inner)], "opaque"))
    nest.operands = [tuple(inner), tuple(outer), *([()] * (len(own.operands) - 2))]
    nest.results = [tuple(outer)]
    return nest


def pad(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Dimensions that get no padding run apart."""
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


def concat(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Dimensions that are not joined run apart."""
    del before
    axis = form.attributes["dim"]
    nest = Nest()
    loops = nest.loops(own.results[0], [axis])
    for shape in own.operands:
        nest.operands.append((*loops[:axis], nest.loop(shape[axis], "opaque"), *loops[axis + 1 :]))
    nest.results = [tuple(loops)]
    return nest


def same(form: Form, own: Shapes, before: Shapes) -> Nest:
    """Each element in its place."""
    del form, before
    nest = Nest()
    shape = tuple(max(pair) for pair in zip(own.operands[0], own.results[0], strict=True))
    loops = tuple(nest.loops(shape))
    nest.operands, nest.results = [loops], [loops]
    return nest


def collective(form: Form, own: Shapes, before: Shapes) -> Nest | None:
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
