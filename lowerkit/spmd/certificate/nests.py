"""Loop nests: which elements of its operands an op reads for an element of its result, and what it may do apart.

Vocabulary
    loop      runs over a dimension; ``parallel``: its turns know nothing of each other; ``sum``, ``product``, ``max``,
              ``min``: their outcomes are combined so; ``opaque``: its turns belong together in a way that is not
              written down, so it must run whole
    place     of an element in an operand or result: for each dimension an index (:mod:`.indices`) over loops
    unread    an operand of which an op takes the shape alone
    loose     an operand that may be larger than what is read of it

The table is this validator's own; it shares nothing with the rules by which programs are split. An op that has no entry,
or where an entry does not say how (None), may run on whole operands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lowerkit.spmd.certificate.graph import OPEN, BodyOp, Form
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
    """Returns the index into dimensions that are joined to one."""
    factors = strides_of(sizes)
    return None if factors is None else total(*zip(loops, factors, strict=True))


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


def read_arguments(form: Form) -> set[int]:
    """Returns the block arguments that the body of a form reads."""

    def read(body: list[BodyOp]) -> set[int]:
        found: set[int] = set()
        for op in body:
            found.update(op[2], *map(read, op[4]))
        return found

    return read(form.body or [])


def uses_op(form: Form, name: str) -> bool:
    """Whether the body of a form holds an op of this name."""

    def holds(body: list[BodyOp]) -> bool:
        return any(op[0] == name or any(map(holds, op[4])) for op in body)

    return holds(form.body or [])


_COMBINED: dict[str, LoopKind] = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "product",
    "arith.muli": "product",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
}


def structured(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """The nest of ``linalg.generic``, out of its maps."""
    del before
    count = len(form.maps)
    if any(each is None for each in form.maps) or not form.loops:
        return None
    extents: dict[int, int] = {}
    shapes = [*own.operands[:count]]
    for each, shape in zip(form.maps, shapes, strict=True):
        for (constant, *pairs), size in zip(each or [], shape, strict=True):
            if constant == 0 and len(pairs) == 2 and pairs[1] == 1:
                extents.setdefault(pairs[0], size)
    if len(extents) != len(form.loops):
        return None
    reduction = _reduction(form, count - len(own.results))
    nest = Nest()
    absolute = uses_op(form, "linalg.index")
    kinds: dict[str, LoopKind] = {"p": "parallel", "r": reduction}
    loops = [nest.loop(extents[loop], "opaque" if absolute else kinds[kind]) for loop, kind in enumerate(form.loops)]
    for each in form.maps:
        nest.operands.append(tuple(_place(dimension, loops) for dimension in each or []))
    nest.operands += [()] * form.captured
    nest.results = nest.operands[count - len(own.results) : count]
    read = read_arguments(form)
    nest.unread = frozenset(number for number in range(count - len(own.results), count) if number not in read)
    return nest


def _place(dimension: list[int], loops: Sequence[Index]) -> Index:
    constant, *pairs = dimension
    terms = [(loops[loop], factor) for loop, factor in zip(pairs[::2], pairs[1::2], strict=True)]
    return total((number(constant), 1), *terms)


def _reduction(form: Form, inputs: int) -> LoopKind:
    """How the turns of reductions are combined: by the last op of the body, where nothing else reads the outcome."""
    body = form.body or []
    if "r" not in form.loops or len(body) < 2 or any(op[4] for op in body):
        return "opaque"
    *rest, last, end = body
    arguments = len(form.maps)
    if arguments != inputs + 1 or end[2] != [arguments + len(body) - 2] or inputs not in last[2]:
        return "opaque"
    if last[2].count(inputs) != 1 or any(inputs in op[2] for op in rest):
        return "opaque"
    return _COMBINED.get(last[0], "opaque")
