"""Loop nests: which elements of its operands an op reads for an element of its result, and what it may do apart.

Vocabulary
    loop      runs over a dimension; ``parallel``: its turns know nothing of each other; ``sum``, ``product``, ``max``,
              ``min``: their outcomes are combined so; ``opaque``: its turns belong together in a way that is not
              written down, so it must run whole
    place     of an element in an operand or result: for each dimension an index (:mod:`.indices`) over loops
    unread    an operand of which an op takes the shape alone
    loose     an operand that may be larger than what is read of it

The nests are this validator's own; they share nothing with the rules by which programs are split. An op without one may
run on whole operands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lowerkit.spmd.certificate.graph import OPEN, Form
from lowerkit.spmd.certificate.indices import Index, Ranges, bounds, number, quotient, remainder, total, variable

LoopKind: TypeAlias = Literal["parallel", "sum", "product", "max", "min", "opaque"]
Shape: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[Index, ...]


@dataclass(frozen=True)
class Shapes:
    """The shapes of an op's operands and results; scalars have none of the extents of a tensor."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]


@dataclass
class Nest:
    """The loop nest of an op; see the module.

    Attributes:
        kinds: of each loop, by the name of its variable.
        extents: how many turns each takes, OPEN where that is not known.
        operands, results: a place in each.
        unread: operands.
        loose: operands.
    """

    kinds: dict[str, LoopKind] = field(default_factory=dict[str, LoopKind])
    extents: dict[str, int] = field(default_factory=dict[str, int])
    operands: list[Place] = field(default_factory=list[Place])
    results: list[Place] = field(default_factory=list[Place])
    unread: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()

    def loop(self, extent: int, kind: LoopKind = "parallel") -> Index:
        """Adds a loop, and returns its variable."""
        name = f"l{len(self.kinds)}"
        self.kinds[name], self.extents[name] = kind, extent
        return variable(name)

    def loops(self, shape: Sequence[int], opaque: Sequence[int] = ()) -> list[Index]:
        """Adds a loop for each dimension, opaque or parallel."""
        return [self.loop(size, "opaque" if axis in opaque else "parallel") for axis, size in enumerate(shape)]

    @property
    def ranges(self) -> dict[str, int | None]:
        """The ranges of the loops' variables."""
        return {name: None if extent == OPEN else extent for name, extent in self.extents.items()}

    def fits(self, shapes: Shapes) -> bool:
        """Whether the loops run over all of each operand that is read, and all of each result, and no further."""
        read = [
            (place, shape, number in self.loose)
            for number, (place, shape) in enumerate(zip(self.operands, shapes.operands, strict=True))
        ]
        pairs = [*read, *((place, shape, False) for place, shape in zip(self.results, shapes.results, strict=True))]
        ranges = self.ranges
        return all(
            len(place) == len(shape)
            and all(_covers(index, size, ranges, loose) for index, size in zip(place, shape, strict=True))
            for place, shape, loose in pairs
        )


def _covers(index: Index, size: int, ranges: Ranges, loose: bool) -> bool:
    low, high = bounds(index, ranges)
    if size == OPEN:
        return low == 0 and high is None
    if not index.terms:
        return index.constant == 0 and (size == 1 or loose)
    if 0 in (size, *(ranges.get(name) for name in index.variables)):
        return size == 0
    if low is None or high is None or low < 0:
        return False
    return high < size if loose else (low, high) == (0, size - 1)


Maker: TypeAlias = Callable[[Form, Shapes, Shapes], "Nest | None"]
"""Given the form, the own shapes of an op, and those of the op before, which say what is broadcast."""


def aligned(before: Shape, loops: Sequence[Index], whole: Shape) -> Place:
    """Returns the place in an operand that is broadcast against loops, right-aligned.

    Args:
        before: the shape of the operand of the op before.
        loops: one for each dimension of the result.
        whole: the extents of these loops in the op before.
    """
    pad = len(loops) - len(before)
    return tuple(
        number(0) if size == 1 and whole[axis + pad] != 1 else loops[axis + pad] for axis, size in enumerate(before)
    )


def strides_of(sizes: Sequence[int]) -> list[int] | None:
    """Returns the factors by which dimensions of these sizes are joined; None where they are not known."""
    found = [1]
    for size in reversed(sizes[1:]):
        if size == OPEN:
            return None
        found.append(found[-1] * size)
    return found[::-1]


def joined(loops: Sequence[Index], sizes: Sequence[int]) -> Index | None:
    """Returns the index into dimensions that are joined to one; None where it cannot be said.

    A dimension of one element has no part in it.
    """
    kept = [(loop, size) for loop, size in zip(loops, sizes, strict=True) if size != 1]
    factors = strides_of([size for _, size in kept]) if kept else []
    return None if factors is None else total(*zip((loop for loop, _ in kept), factors, strict=True))


def decode(index: Index, place: Index, extents: dict[str, int], ranges: Ranges) -> dict[str, Index]:
    """Returns what the loops of ``place`` must be where it is ``index``, as far as digits tell.

    ``place`` is a sum of loops with factors, as joined dimensions have: the quotient by the largest factor is one loop,
    the remainder goes on. The caller checks the answer.
    """
    rest = total((index, 1), (number(place.constant), -1))
    found: dict[str, Index] = {}
    terms = sorted(((factor, str(atom)) for atom, factor in place.terms), reverse=True)
    for factor, name in (term for term in terms if extents[term[1]] != 1 or len(terms) == 1):
        digit = quotient(rest, factor, ranges)
        found[name] = digit
        rest = remainder(rest, factor, ranges)
    for _, name in terms:
        found.setdefault(name, number(0))
    return found


def carried_turns(
    equations: Sequence[tuple[Index, Index]], extents: dict[str, int], ranges: Ranges
) -> dict[str, Index]:
    """Returns what loops must be where places of one nest are given indices, as far as digits tell.

    The caller checks the answer.

    Args:
        equations: an index, and the place that it is, over loops.
        extents: of these loops.
        ranges: of the variables of the indices.
    """
    carried: dict[str, Index] = {}
    single = [each for each in equations if len(each[1].terms) == 1]
    for index, place in (*single, *equations):
        known = [(atom, factor) for atom, factor in place.terms if str(atom) in carried]
        open_ = Index(tuple(term for term in place.terms if term not in known), place.constant)
        if open_.terms:
            rest = total((index, 1), *((carried[str(atom)], -factor) for atom, factor in known))
            for name, digit in decode(rest, open_, extents, ranges).items():
                carried.setdefault(name, digit)
    return {**single_turns(extents), **carried}


def single_turns(extents: dict[str, int]) -> dict[str, Index]:
    """Returns the turn of each loop that has one turn."""
    return {name: number(0) for name, extent in extents.items() if extent == 1}
