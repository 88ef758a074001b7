"""The parts of tensors that operators write a value to: their shapes, in extents that may be open.

Arithmetic on open extents is sympy's, which is imported where a part has an extent of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.capture.contracts.vocabulary import Call, Extent


def selected(call: Call, into: list[Extent]) -> Sequence[Extent]:
    """All dims but ``dim``."""
    dim = int(call.arguments["dim"]) % len(into)
    return into[:dim] + into[dim + 1 :]


def sliced(call: Call, into: list[Extent]) -> Sequence[Extent] | None:
    """All dims, and of ``dim`` what ``start:end:step`` takes; None where that is not known."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv

    dim, step = int(call.arguments["dim"]) % len(into), call.arguments["step"]
    bounds = [call.arguments["start"], call.arguments["end"]]
    if not isinstance(step, int) or not all(bound is None or isinstance(bound, int) for bound in bounds):
        return None
    start, end = _within(bounds[0] or 0, into[dim]), into[dim] if bounds[1] is None else _within(bounds[1], into[dim])
    count = sympy.Max(0, end - start)
    return [*into[:dim], count if step == 1 else FloorDiv(count + step - 1, step), *into[dim + 1 :]]


def _within(place: int, extent: Any) -> Any:
    """A bound of a slice as Python takes it: from the end where it is negative, and no further than the ends."""
    import sympy

    return sympy.Max(0, extent + place) if place < 0 else sympy.Min(extent, place)


def on_diagonal(call: Call, into: list[Extent]) -> Sequence[Extent]:
    """The other dims, and behind them how long the diagonal is."""
    import sympy

    first, second = (int(call.arguments[name]) % len(into) for name in ("dim1", "dim2"))
    offset = int(call.arguments["offset"])
    rest = [extent for axis, extent in enumerate(into) if axis not in (first, second)]
    return [*rest, sympy.Max(0, sympy.Min(into[first] + min(offset, 0), into[second] - max(offset, 0)))]


def rows(call: Call, into: list[Extent]) -> Sequence[Extent | None] | None:
    """All dims, but ``dim`` of any extent: a value holds as many rows as there are indices."""
    dim = int(call.arguments["dim"]) % len(into) if into else 0
    return [None if axis == dim else extent for axis, extent in enumerate(into)] if into else None


def named_by_lists(call: Call, into: list[Extent]) -> Sequence[Extent | None]:
    """What ``indices`` name, each a list or a mask of leading dims, or None for all of one.

    The lists' broadcast extents stand where the first list does if they follow one another and in front otherwise,
    among the extents of the dims that no list names. How many places a mask names is not known.
    """
    named: list[int] = []
    lists: list[Sequence[Extent | None]] = []
    axis = 0
    for index in call.arguments["indices"]:
        shape = [] if index is None else call.shape_of(index) or []
        mask = index is not None and call.is_mask(index)
        width = len(shape) if mask else 1
        if index is not None:
            lists.append([None] if mask else shape)
            named += range(axis, axis + width)
        axis += width
    first = named[0] if named and named == list(range(named[0], named[-1] + 1)) else 0
    kept = [(axis, extent) for axis, extent in enumerate(into) if axis not in named]
    before = [extent for axis, extent in kept if axis < first]
    return [*before, *_broadcast(lists), *(extent for axis, extent in kept if axis >= first)]


def _broadcast(shapes: list[Sequence[Extent | None]]) -> list[Extent | None]:
    """An extent that is not 1 wins; one that a mask decides is not known."""
    result: list[Extent | None] = []
    for place in range(-max(map(len, shapes), default=0), 0):
        met = [shape[place] for shape in shapes if len(shape) >= -place]
        others = [extent for extent in met if extent is not None and extent != 1]
        result.append(others[0] if others else None if None in met else 1)
    return result
