"""Shows what a weight that a split makes is, by its derivation alone: no data is read.

Vocabulary
    probe   an array of the shape of a weight that holds, in each element, its place along one dimension, counted from 1

Steps: a derivation that moves elements gives, of the probe of each dimension, where each element of each part came
from; 0 is padding. That must be slice r of a dimension, for rank r. A weight that is the same for all ranks must be a
block of the nearest weight that the program before reads; what lies between is derived from the probe, too. Along no
axis, a weight may be another one in chunks. Derivations
of equal code and equal constants are asked once. A table without a source is small and is read: rows of integers that
are a linear function of the rank.

Bytes: a probe has one or two bytes an element as long as the dimension is below 65536.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lowerkit.errors import VerifyError
from lowerkit.program.weights import Shard, WeightStore
from lowerkit.spmd.certificate.facts import Chunks, Cut, Fact, Rows, Slices
from lowerkit.spmd.certificate.graph import Graph, element_of, shape_of, type_text
from lowerkit.spmd.certificate.sums.chunked_weights import places_of

Array = np.ndarray[Any, Any]


def facts_of(before: Graph, after: Graph, store: WeightStore, axis: str, ranks: int) -> list[Fact]:
    """Returns what the weights of ``after`` are that the ranks along ``axis`` share, or that are blocks of one before.

    Raises:
        VerifyError: LK3006, a weight is neither slices of one before nor a table that a proof can state.
    """
    there = before.weights
    types = {**after.weights, **there}
    known: dict[Any, int | None] = {}
    held: dict[Any, bool] = {}
    found: list[Fact] = []
    for symbol, kind in after.weights.items():
        shard = store.shard(symbol)
        if shard is None and symbol not in there and _is_numbers(kind) and not _reads_data(store, symbol):
            with suppress(VerifyError):  # a weight like others then, of which nothing is known
                found.append(_rows(symbol, store.get(symbol)[np.newaxis], Shard(((axis, 1),)), 1))
            continue
        if shard is None and symbol not in there and (cut := _cut(store, symbol, kind, there)) is not None:
            found.append(cut)
            continue
        if not axis and symbol not in there and (chunks := _chunks(store, symbol, kind, there, held)) is not None:
            found.append(chunks)
            continue
        if shard is None or (axis, ranks) not in shard.axes:
            if shard is not None and axis in dict(shard.axes):
                raise _unproved(symbol, f"it has {dict(shard.axes)[axis]} parts for {ranks} ranks of {axis!r}")
            continue
        parents = store.parents(symbol)
        if not parents:
            found.append(_rows(symbol, store.get(symbol), shard, ranks))
            continue
        if len(parents) != 1:
            raise _unproved(symbol, f"it is made of {len(parents)} weights")
        (source,) = parents
        found.append(_slices(store, symbol, types.get(source), axis, known))
    return found


def _is_numbers(kind: str) -> bool:
    return element_of(kind).startswith("i") and len(shape_of(kind) or ()) < 2


def _reads_data(store: WeightStore, symbol: str) -> bool:
    """Whether a weight is made of the data of a model; others are made of what a pass knows."""
    parents = store.parents(symbol)
    return store.derivation(symbol) is None or any(_reads_data(store, parent) for parent in parents)


def _cut(store: WeightStore, symbol: str, kind: str, there: Mapping[str, str]) -> Cut | None:
    """Returns of which weight before a weight of type ``kind`` is a block; None: it is none, and nothing is known."""
    source = symbol
    while source not in there:
        parents = store.parents(source)
        if len(parents) != 1 or store.spec(source)[0] != element_of(kind):
            return None
        (source,) = parents
    whole, own = shape_of(there[source]) or (), shape_of(kind) or ()
    if store.shard(source) is not None or element_of(there[source]) != element_of(kind) or len(whole) != len(own):
        return None

    def place(probe: Array) -> Array:
        data = {source: probe}
        return store.recompute(symbol, lambda name: _recomputed(store, name, data)).reshape(own)

    stored, starts = store.spec(source)[1], list[int]()
    for dimension, size in enumerate(own):
        places = place(_probe(whole, dimension, stored)).astype(np.int64)
        start = int(places.flat[0]) - 1 if places.size else -1
        if start < 0 or bool((places != _along(np.arange(size) + start + 1, dimension, len(own))).any()):
            return None
        starts.append(start)
    return Cut(symbol, source, there[source], starts)


def _chunks(
    store: WeightStore, symbol: str, kind: str, there: Mapping[str, str], held: dict[Any, bool]
) -> Chunks | None:
    """Returns of which weight before a weight is the chunks; None: it is none of these."""
    parents = store.parents(symbol)
    if len(parents) != 1 or parents[0] not in there:
        return None
    identity = _identity(store.derivation(symbol))
    for fact in _candidates(symbol, kind, parents[0], there[parents[0]]):
        key = (identity, kind, fact.kind, fact.axis, fact.count, fact.size, store.shard(symbol))
        if identity is None or key not in held:
            held[key] = _holds(fact, kind, store)
        if held[key]:
            return fact
    return None


def _candidates(symbol: str, kind: str, source: str, whole_kind: str) -> list[Chunks]:
    """Returns the facts that the shapes of a weight and of its source allow."""
    whole, own = list(shape_of(whole_kind) or ()), list(shape_of(kind) or ())
    found: list[Chunks] = []
    for axis in range(len(whole)) if len(own) >= len(whole) else ():
        if len(own) >= len(whole) + 2:
            count, size = own[0] * own[1], own[len(own) - len(whole) + axis]
        elif axis == 0:
            count, size = own[0], 1
        else:
            count, size = own[0] // max(whole[0], 1), own[axis]
        fact = Chunks(symbol, source, whole_kind, axis, count, size)
        if fact.fits(own):
            found.append(fact)
    return found


def _holds(fact: Chunks, kind: str, store: WeightStore) -> bool:
    shard = store.shard(fact.source)
    leading = () if shard is None else shard.sizes
    whole, own = (*leading, *(shape_of(fact.kind) or ())), (*leading, *(shape_of(kind) or ()))
    if store.shard(fact.symbol) != shard or store.spec(fact.symbol)[0] != store.spec(fact.source)[0]:
        return False
    places = places_of(fact, shape_of(kind) or ())
    for dimension, extent in enumerate(whole):
        made = _moved(store, fact.symbol, whole, dimension, store.spec(fact.source)[1]).reshape(own)
        if dimension < len(leading):
            expected = _along(np.arange(1, extent + 1), dimension, len(own))
        else:
            expected = places[dimension - len(leading)] + 1
        inside = places[fact.axis] < (shape_of(fact.kind) or ())[fact.axis]
        if not np.array_equal(made, np.broadcast_to(np.where(inside, expected, 0), own)):
            return False
    return True


def _recomputed(store: WeightStore, symbol: str, data: Mapping[str, Array]) -> Array:
    """Returns a weight as it is derived, step by step, from what stands for others."""
    known = data.get(symbol)
    return store.recompute(symbol, lambda name: _recomputed(store, name, data)) if known is None else known


def _slices(store: WeightStore, symbol: str, kind: str | None, axis: str, known: dict[Any, int | None]) -> Slices:
    (source,) = store.parents(symbol)
    shard, outer = store.shard(symbol), store.shard(source)
    assert shard is not None, "it was asked for because it is shared"
    leading = () if outer is None else outer.axes
    stored = store.spec(source)[1]
    if kind is None:
        kind = type_text(store.spec(source)[0], stored[len(leading) :])
    shape = shape_of(kind) or ()
    if shard.axes != (*leading, (axis, dict(shard.axes)[axis])):
        raise _unproved(symbol, "its parts are not those of its source, cut again")
    key = (_identity(store.derivation(symbol)), shape, leading, shard.axes, stored)
    if key not in known or key[0] is None:
        known[key] = _axis_of(store, symbol, shape, stored, shard)
    dimension = known[key]
    if dimension is None:
        raise _unproved(symbol, f"its parts are not the slices of {source} along a dimension")
    if element_of(kind) != store.spec(symbol)[0]:
        raise _unproved(symbol, f"it has elements of {store.spec(symbol)[0]}, its source of {element_of(kind)}")
    return Slices(symbol, source, kind, dimension)


def _identity(function: Callable[..., Any] | None) -> Any:
    """Returns what two derivations share that compute the same: code and constants; None where that is not known."""
    code = getattr(function, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if code is None or getattr(function, "__defaults__", None) or not all(map(_is_constant, cells)):
        return None
    return code, repr(cells)


def _is_constant(item: Any) -> bool:
    return isinstance(item, int | str) or (isinstance(item, list | tuple) and all(map(_is_constant, item)))


def _axis_of(store: WeightStore, symbol: str, shape: Sequence[int], stored: Sequence[int], shard: Shard) -> int | None:
    """Returns the dimension along which the parts of a weight are slices of its source."""
    *leading, ranks = shard.sizes
    whole = (*leading, *shape)
    parts = [_moved(store, symbol, whole, dimension, stored) for dimension in range(len(whole))]
    for axis, extent in enumerate(shape):
        size = -(-extent // ranks)
        cut = (*leading, ranks, *shape[:axis], size, *shape[axis + 1 :])
        if all(part.shape == cut for part in parts) and all(
            bool((part == _expected(dimension, len(leading), axis, cut, extent, part.dtype)).all())
            for dimension, part in enumerate(parts)
        ):
            return axis
    return None


def _moved(store: WeightStore, symbol: str, whole: Sequence[int], dimension: int, stored: Sequence[int]) -> Array:
    probe = _probe(whole, dimension, stored)
    return store.recompute(symbol, lambda _: probe)


def _probe(whole: Sequence[int], dimension: int, stored: Sequence[int]) -> Array:
    places = _along(np.arange(1, whole[dimension] + 1), dimension, len(whole))
    dtype = np.min_scalar_type(whole[dimension] + 1)
    return np.broadcast_to(places.astype(dtype), whole).reshape(stored)


def _along(values: Array, dimension: int, rank: int) -> Array:
    return values.reshape([-1 if place == dimension else 1 for place in range(rank)])


def _expected(
    dimension: int, leading: int, axis: int, cut: tuple[int, ...], extent: int, dtype: np.dtype[Any]
) -> Array:
    """Returns the places along a dimension that the slices hold, 0 where they are padded; it broadcasts to ``cut``."""
    rank = len(cut)
    own = leading + 1 + axis
    first = _along(np.arange(cut[leading]) * cut[own], leading, rank)
    along = first + _along(np.arange(cut[own]), own, rank)
    if dimension == leading + axis:
        places = along + 1
    else:
        position = dimension if dimension < leading else dimension + 1
        places = _along(np.arange(1, cut[position] + 1), position, rank)
    places = places.astype(dtype)
    return places if cut[leading] * cut[own] == extent else np.where(along < extent, places, dtype.type(0))


def _rows(symbol: str, data: Array, shard: Shard, ranks: int) -> Rows:
    if data.dtype.kind != "i" or shard.sizes != (ranks,) or data.ndim not in (1, 2):
        raise _unproved(symbol, f"it is a table of {data.dtype} {data.shape}, and not of rows of integers")
    table = data.astype(np.int64).reshape(ranks, -1)
    count = data.shape[1] if data.ndim == 2 else -1
    start = int(table[0, 0]) if table.size else 0
    step = int(table[0, 1]) - start if table.shape[1] > 1 else 0
    rank = int(table[1, 0]) - start if ranks > 1 else 0
    numbers, places = np.indices(table.shape)
    if np.array_equal(table, rank * numbers + step * places + start):
        return Rows(symbol, count, rank, step, start)
    period = int(np.argmax(table[:, 0] != start))  # ranks that share a row
    if period and np.array_equal(table, (numbers + start * period) // period):
        return Rows(symbol, count, 1, 0, start * period, period)
    raise _unproved(symbol, "its rows are no linear function of the rank")


def _unproved(symbol: str, reason: str) -> VerifyError:
    return VerifyError("LK3006", f"the weight {symbol!r} of the ranks cannot be proved: {reason}")
