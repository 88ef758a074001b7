"""What a value of one rank is, in terms of the program before: the statements of a proof.

Vocabulary
    r       the number of the rank along the axis that is split
    i0...   the element of the rank's own tensor
    view    that element is element ``index`` of a value before, where ``index`` lies in it; elements beyond its ends
            (padding) may hold anything
    terms   of a view: not the element itself; the outcome of a reduction of the ranks' elements is. The index is
            the same on all ranks then
    chunk   the sum of some neighbouring terms of that element, where it is a sum: see :mod:`.sums`
    whole   a view of all of a value, in its place; ``split d``: dimension d in slices of one size, by rank
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lowerkit.spmd.certificate.graph import OPEN, shape_of
from lowerkit.spmd.certificate.indices import Index, number, substitute, total, variable
from lowerkit.spmd.certificate.values import Classes, Extent

RANK = "r"


@dataclass(frozen=True)
class View:
    """See the module.

    Attributes:
        base: the class of the value before.
        index: for each of its dimensions, over ``r`` and ``i0``, ``i1``, ...
        terms: the reduction of the ranks' elements that gives the element, or ``""``.
    """

    base: int
    index: tuple[Index, ...] = ()
    terms: str = ""


@dataclass(frozen=True)
class Pending:
    """The result of a collective that has begun; only its end may read it."""

    then: View


@dataclass(frozen=True)
class Formula:
    """Elements that each rank computes from what it has, with no counterpart before: see :mod:`.lookups`.

    Attributes:
        node: a nested tuple; its operators are those of :mod:`.lookups`.
        extents: of the tensor.
    """

    node: tuple[Hashable, ...]
    extents: tuple[Extent, ...]

    @property
    def rank(self) -> int:
        """How many dimensions the tensor has."""
        return len(self.extents)


@dataclass(frozen=True)
class Chunk:
    """A part of a sum that a value before is: the terms ``first`` to ``first + leaf * 2**level`` of its elements.

    Attributes:
        base: the class of the value before.
        index: for each of its dimensions, as of a view.
        first: the number of the first term, over ``i0``, ``i1``, ...
        depth: how many terms there are in all; those behind are zeros.
        leaf: how many terms are added one after the other.
        level: of the tree: how often neighbours of one size have been added.
    """

    base: int
    index: tuple[Index, ...]
    first: Index
    depth: int
    leaf: int
    level: int = 0

    @property
    def size(self) -> int:
        """How many terms."""
        return self.leaf << self.level

    @property
    def view(self) -> View:
        """What it is a part of."""
        return View(self.base, self.index)


Relation: TypeAlias = View | Pending | Formula | Chunk


def element(count: int) -> list[Index]:
    """Returns the variables ``i0``, ``i1``, ... of a tensor of so many dimensions."""
    return [variable(f"i{axis}") for axis in range(count)]


def whole(base: int, classes: Classes) -> View:
    """Returns the relation of a value that every rank has."""
    return View(base, tuple(element(len(classes.extents[base] or ()))))


def is_whole(relation: Relation, kind: str, classes: Classes) -> bool:
    """Whether a value of type ``kind`` is one of the values before, all of it."""
    if not isinstance(relation, View) or relation.terms or classes.types[relation.base] != kind:
        return False
    return not _moved(relation.index, shape_of(kind) or ())


def _moved(view: Sequence[Index], shape: Sequence[int]) -> list[int]:
    """Returns the dimensions that are not in their place; where there is one element, that is 0."""
    own = element(len(view))
    pairs = enumerate(zip(view, shape, strict=True))
    return [axis for axis, (index, size) in pairs if index != own[axis] and (size != 1 or index != number(0))]


def canonical(relation: Relation, kind: str) -> Relation:
    """Returns a relation with 0 for the element of a dimension that has one."""
    if isinstance(relation, Pending):
        then = canonical(relation.then, kind)
        assert isinstance(then, View), "what is pending is a view"
        return Pending(then)
    if isinstance(relation, Chunk):
        *index, first = canonical_indices((*relation.index, relation.first), kind)
        return replace(relation, index=tuple(index), first=first)
    if not isinstance(relation, View):
        return relation
    return View(relation.base, canonical_indices(relation.index, kind), relation.terms)


def canonical_indices(indices: tuple[Index, ...], kind: str) -> tuple[Index, ...]:
    """Returns indices with 0 for the element of a dimension that has one."""
    shape = shape_of(kind) or ()
    single = {f"i{axis}": number(0) for axis, size in enumerate(shape) if size == 1}
    if not single:
        return indices
    ranges = {f"i{axis}": None if size == OPEN else size for axis, size in enumerate(shape)}
    return tuple(substitute(index, single, ranges) for index in indices)


def open_extents_hold(view: View, kind: str, classes: Classes) -> bool:
    """Whether each open dimension of a tensor is a dimension of the value before, from end to end."""
    shape = shape_of(kind) or ()
    for axis, size in enumerate(shape):
        if size == OPEN:
            own = variable(f"i{axis}")
            holding = [number for number, index in enumerate(view.index) if f"i{axis}" in index.variables]
            if len(holding) != 1 or view.index[holding[0]] != own:
                return False
    return True


def extents_of(relation: Relation, kind: str, classes: Classes) -> tuple[Extent, ...] | None:
    """Returns the extents of a value, open ones as those of a value before; None where one is not known."""
    if isinstance(relation, Formula):
        return relation.extents
    view = relation.then if isinstance(relation, Pending) else relation
    found: list[Extent] = []
    for axis, size in enumerate(shape_of(kind) or ()):
        own = [place for place, index in enumerate(view.index) if index == variable(f"i{axis}")]
        if size == OPEN and not own:
            return None
        found.append((classes.extents[view.base] or ())[own[0]] if size == OPEN else size)
    return tuple(found)


def render(relation: Relation, kind: str, classes: Classes) -> str:
    """Returns a relation as a certificate states it; equal texts are equal relations."""
    if isinstance(relation, Pending):
        return f"pending {render(relation.then, kind, classes)}"
    if isinstance(relation, Formula):
        return "computed from own data"
    if isinstance(relation, Chunk):
        place = f"{relation.first} to {relation.first} + {relation.size}"
        return f"%{relation.base} {placement(relation.view, kind, classes)}, its terms {place} of {relation.depth}"
    suffix = f", terms of a {relation.terms}" if relation.terms else ""
    return f"%{relation.base} {placement(relation, kind, classes)}{suffix}"


def placement(view: View, kind: str, classes: Classes) -> str:
    """Returns ``whole``, ``split d``, or the index."""
    own = element(len(view.index))
    shape = shape_of(kind) or ()
    if len(view.index) == len(shape):
        differing = _moved(view.index, shape)
        if not differing and classes.types[view.base] == kind:
            return "whole"
        if len(differing) == 1 and shape[differing[0]] > 0:
            axis = differing[0]
            inside = own[axis] if shape[axis] > 1 else number(0)
            if view.index[axis] == total((variable(RANK), shape[axis]), (inside, 1)):
                return f"split {axis}"
    return f"[{', '.join(map(str, view.index))}]"


def explain(relations: Sequence[Relation], kinds: Sequence[str], classes: Classes) -> list[str]:
    """Returns a line for each value, for people: what it is of which value before."""
    lines: list[str] = []
    for relation, kind in zip(relations, kinds, strict=True):
        view = relation.then if isinstance(relation, Pending) else relation
        name = f" of {classes.names[view.base]}" if isinstance(view, View | Chunk) else ""
        lines.append(f"{kind} is {render(relation, kind, classes)}{name}")
    return lines
