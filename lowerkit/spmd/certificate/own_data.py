"""The lemmas of what a rank has of its own: parts of weights, rows of tables, and rows that it takes by them."""

from __future__ import annotations

from lowerkit.spmd.certificate.facts import Chunks, Cut, Fact, Slices
from lowerkit.spmd.certificate.graph import Form, element_of, shape_of
from lowerkit.spmd.certificate.indices import Index, number, total, variable
from lowerkit.spmd.certificate.lookups import found_rows
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.moves import ranges_of, taken
from lowerkit.spmd.certificate.relations import RANK, Formula, Relation, View, element
from lowerkit.spmd.certificate.sums.chunked_weights import chunked_weight
from lowerkit.spmd.certificate.values import Classes, Extent


def own_weight(fact: Fact, kind: str, ranks: int, classes: Classes) -> tuple[str, Relation]:
    """Returns by which lemma an ``lk.weight`` of type ``kind`` is what, of which a fact is known.

    Raises:
        Unproved: the fact is one of another type.
    """
    shape = shape_of(kind) or ()
    own = element(len(shape))
    if isinstance(fact, Slices):
        base = classes.weight(fact.source, fact.kind)
        whole = shape_of(fact.kind) or ()
        if not 0 <= fact.axis < len(whole):
            fail(f"{fact.kind} has no dimension {fact.axis}")
        size = -(-whole[fact.axis] // ranks)
        if shape != (*whole[: fact.axis], size, *whole[fact.axis + 1 :]):
            fail(f"{kind} is no slice of {fact.kind}")
        own[fact.axis] = total((variable(RANK), size), (own[fact.axis], 1))
        return "slice", View(base, tuple(own))
    if isinstance(fact, Chunks):
        return "chunks", chunked_weight(fact, kind, classes)
    if isinstance(fact, Cut):
        whole = shape_of(fact.kind) or ()
        if not len(fact.starts) == len(whole) == len(shape) or element_of(kind) != element_of(fact.kind):
            fail(f"{kind} is no block of {fact.kind}")
        places = list(zip(fact.starts, shape, whole, strict=True))
        if any(start < 0 or not 0 <= size <= extent - start for start, size, extent in places):
            fail(f"a block {kind} at {fact.starts} leaves {fact.kind}")
        moved = (total((index, 1), (number(start), 1)) for index, start in zip(own, fact.starts, strict=True))
        return "cut", View(classes.weight(fact.source, fact.kind), tuple(moved))
    if shape != ((fact.count,) if fact.count >= 0 else ()):
        fail(f"{kind} is no row of the table")
    place = own[0] if own else variable("i0")
    ranges = {**ranges_of(kind, ranks), "i0": max(fact.count, 1)}
    return "row", Formula(("integer", fact.element(variable(RANK), place, ranges)), shape)


def taken_rows(
    form: Form, table: View, indices: Formula, shape: tuple[Extent, ...], ranges: dict[str, int | None]
) -> tuple[str, Relation]:
    """Returns by which lemma an ``lk.gather`` by own numbers is what.

    Args:
        form: of the op.
        table, shape: what is looked up, and its extents.
        indices: computed from own data.
        ranges: of ``r``, and of the elements of the result.

    Raises:
        Unproved: it cannot be followed, or may look outside of the table.
    """
    axis = form.attributes["axis"]
    places = indices.node[1] if indices.node[0] == "integer" else None
    if places is None:
        return "own", found_rows(table, indices, axis, shape)
    assert isinstance(places, Index), "numbers of the rank are indices"
    size = shape[axis] if 0 <= axis < len(shape) else None
    if not isinstance(size, int):
        fail("it looks up along an open dimension")
    return "take", taken(table, axis, places, indices.rank, size, ranges)
