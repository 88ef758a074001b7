"""The lemmas of what a split adds between the ops of the program before: moves of elements, and collectives.

Each says what an element of the result is, given what the elements of the operand are: a move reads the operand at
another place; a collective reads the operand of another rank, so that ``r`` becomes an index of the result, or the
other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowerkit.spmd.certificate.graph import OPEN, Form, shape_of
from lowerkit.spmd.certificate.indices import Floor, Index, Ranges, bounds, number, substitute, total, variable
from lowerkit.spmd.certificate.loop_nests.nest import Shapes, decode, single_turns
from lowerkit.spmd.certificate.loop_nests.table import nest_of
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.relations import RANK, View

MOVES = frozenset(
    {
        "linalg.transpose",
        "linalg.broadcast",
        "tensor.expand_shape",
        "tensor.collapse_shape",
        "tensor.extract_slice",
        "tensor.cast",
    }
)


def ranges_of(kind: str, ranks: int) -> dict[str, int | None]:
    """Returns the ranges of ``r`` and of ``i0``, ``i1``, ... in a tensor of type ``kind``."""
    shape = shape_of(kind) or ()
    return {RANK: ranks, **{f"i{axis}": None if size == OPEN else size for axis, size in enumerate(shape)}}


def moved(form: Form, shapes: Shapes, view: View, kind: str, ranks: int) -> View:
    """Returns what the result of a move is.

    Args:
        form, shapes: of the op.
        view: of its first operand.
        kind: the type of the result.
        ranks: how many there are.

    Raises:
        Unproved: the op is no move, or more than one.
    """
    nest = nest_of(form, shapes, shapes)
    if nest is None or form.name not in MOVES:
        fail("it is no move of elements that can be followed")
    ranges = {**nest.ranges, **ranges_of(kind, ranks)}
    inside = {f"i{axis}": place for axis, place in enumerate(nest.operands[0])}
    turns = single_turns(nest.extents)
    for axis, place in enumerate(nest.results[0]):
        turns.update(decode(variable(f"i{axis}"), place, nest.extents, ranges))
    return View(view.base, _replaced(_replaced(view.index, inside, ranges), turns, ranges), view.terms)


def concatenated(views: Sequence[View], axis: int, size: int) -> View:
    """Returns what tensors of ``size`` along ``axis`` are, one behind the other, that are neighbours of one value.

    Raises:
        Unproved: they are not: element j of tensor k must be what element ``k * size + j`` of a single view is.
    """
    first = views[0]
    if any(view.base != first.base or view.terms or len(view.index) != len(first.index) for view in views):
        fail("it joins what are no parts of one value")
    own, index = variable(f"i{axis}"), list[Index]()
    for dimension, start in enumerate(first.index):
        steps = [total((view.index[dimension], 1), (start, -1)) for view in views]
        if any(step.terms for step in steps):
            fail("it joins parts that are held in different ways")
        apart = steps[1].constant if len(steps) > 1 else 0
        along = sum(factor for atom, factor in start.terms if atom == f"i{axis}")
        inside = size == 1 or (along * size == apart and start.variables.isdisjoint(_beyond(start, axis)))
        if not inside or [step.constant for step in steps] != [number * apart for number in range(len(steps))]:
            fail("it joins parts that are no neighbours")
        index.append(total((start, 1), (own, apart)) if size == 1 else start)
    return View(first.base, tuple(index))


def _beyond(index: Index, axis: int) -> set[str]:
    """Returns the element along ``axis`` where a floor depends on it: there it is no plain sum."""
    inside = {name for atom, _ in index.terms if isinstance(atom, Floor) for name in atom.of.variables}
    return inside & {f"i{axis}"}


def taken(view: View, axis: int, places: Index, count: int, size: int, ranges: Ranges) -> View:
    """Returns what a look-up of known numbers along ``axis`` gives.

    Args:
        view: of the table.
        axis: that is looked up.
        places: number ``i0`` of what is looked up, over ``r`` and ``i0``.
        count: dimensions of the numbers, 0 or 1.
        size: extent of the axis.
        ranges: of ``r``, and of the elements of the result.

    Raises:
        Unproved: a number may be outside of the table.
    """
    own = substitute(places, {"i0": variable(f"i{axis}")}, ranges) if count else places
    low, high = bounds(own, ranges)
    if low is None or high is None or low < 0 or high >= size:
        fail(f"row {own} may be outside of {size} rows")
    values = {f"i{axis}": own}
    for later in range(axis + 1, len(ranges) + 1):
        values[f"i{later}"] = variable(f"i{later - 1 + count}")
    return View(view.base, _replaced(view.index, values, ranges), view.terms)


def met(form: Form, view: View, kinds: tuple[str, str], ranks: int) -> View:
    """Returns what a collective along the axis that is split gives.

    Args:
        form: of the op.
        view: of its operand.
        kinds: the types of operand and result.
        ranks: how many there are.

    Raises:
        Unproved: it does not give a value before.
    """
    kind, reduction = form.attributes["kind"], form.attributes["reduction"]
    if form.attributes["ranks"] != ranks:
        fail(f"it meets {form.attributes['ranks']} ranks of {ranks}")
    operand, result = (shape_of(text) or () for text in kinds)
    ranges = ranges_of(kinds[1], ranks)
    if kind in ("all_reduce", "reduce_scatter"):
        if view.terms != reduction:
            held = f"terms of a {view.terms}" if view.terms else "no terms"
            fail(f"it reduces by {reduction}, and its operand is {held}")
        if kind == "all_reduce":
            _require(operand == result, operand, result)
            return View(view.base, view.index)
        _require(operand == (ranks, *result), operand, result)
        values = {"i0": variable(RANK), **{f"i{axis + 1}": variable(f"i{axis}") for axis in range(len(result))}}
        return View(view.base, _replaced(view.index, values, ranges))
    if view.terms:
        fail(f"it moves terms of a {view.terms}, which nothing adds up")
    if kind == "all_gather":
        _require(result == (ranks, *operand), operand, result)
        values = {RANK: variable("i0"), **{f"i{axis}": variable(f"i{axis + 1}") for axis in range(len(operand))}}
        return View(view.base, _replaced(view.index, values, ranges))
    _require(operand == result, operand, result)
    if kind == "all_to_all":
        _require(operand[:1] == (ranks,), operand, result)
        return View(view.base, _replaced(view.index, {RANK: variable("i0"), "i0": variable(RANK)}, ranges))
    if kind == "broadcast":
        return View(view.base, _replaced(view.index, {RANK: number(form.attributes["root"])}, ranges))
    return fail(f"{kind} gives each rank something else")


def _require(holds: bool, operand: tuple[int, ...], result: tuple[int, ...]) -> None:
    if not holds:
        fail(f"it makes {list(result)} of {list(operand)}")


def _replaced(index: tuple[Index, ...], values: Mapping[str, Index], ranges: Ranges) -> tuple[Index, ...]:
    return tuple(substitute(each, values, ranges) for each in index)
