"""The loop nest of an op, and how the op runs when the ranks share one of its loops.

Vocabulary
    loop       one index of the op's formula, from 0 to its extent. What differs along it: ``parallel``: elements of the
               result, each computed apart; ``sum``, ``product``, ``min``, ``max``: the terms of which the result is the
               reduction; ``opaque``: all of it is needed at once, as by a softmax, or by windows that overlap.
    index      of one dimension, the loops whose joint position indexes it, outermost first. ``(2,)``: loop 2 alone;
               ``(0, 2)``: a dimension that joins two, ``i0 * e2 + i2``; ``()``: no loop, the extent is one or the
               dimension is read whole at each position.
    along      a rank runs its slice of one loop: of dimensions that the loop indexes it has the slice, all others
               whole. The result is split too along a parallel loop, and a term along one of a reduction.

A loop can be shared where it is outermost wherever it indexes: its slices are slices of those dimensions then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import tensor_type
from lowerkit.passes.shard.shardings import WHOLE, Partial, Placed, Reduction, Sharding, Shared, Split

Kind = Literal["parallel", "sum", "product", "min", "max", "opaque"]
Index: TypeAlias = tuple[int, ...]
_REDUCTIONS: dict[str, Reduction] = {"sum": "sum", "product": "product", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Loop:
    """One loop; its extent is DYNAMIC where unknown."""

    extent: int
    kind: Kind = "parallel"


@dataclass(frozen=True)
class Stated:
    """An attribute that states the extent of a dimension, which is smaller on a rank.

    Attributes:
        name: of the attribute: an i64, or an i64 array.
        place: in the array; None for an i64.
        loop: the loop that indexes the dimension.
    """

    name: str
    place: int | None
    loop: int


@dataclass(frozen=True)
class Nest:
    """The loops of one op.

    Attributes:
        loops: by number.
        operands: the index of each dimension of each operand; None for what is no tensor.
        results: the same of the results.
        destinations: operands that say what a result looks like and whose content is not read: number to result.
        stated: attributes with extents.
    """

    loops: tuple[Loop, ...]
    operands: tuple[tuple[Index, ...] | None, ...]
    results: tuple[tuple[Index, ...], ...]
    destinations: dict[int, int] = field(default_factory=dict[int, int])
    stated: tuple[Stated, ...] = ()

    def loop_of(self, operand: int, axis: int) -> int | None:
        """Returns the loop whose slices are slices of a dimension of an operand; None where there is none."""
        return _outermost(self.operands[operand], axis)

    def loop_of_result(self, result: int, axis: int) -> int | None:
        """Returns the loop whose slices are slices of a dimension of a result."""
        return _outermost(self.results[result], axis)

    def axis_in(self, operand: int, loop: int) -> int | None:
        """Returns the dimension of an operand that a loop is the outermost of."""
        return next((axis for axis, index in enumerate(self.operands[operand] or ()) if index[:1] == (loop,)), None)

    def shared(self, placed: Placed) -> int | None:
        """Returns the loop that the ranks share of an op that runs as ``placed``; None where they share none."""
        for number, held in enumerate(placed.operands):
            if isinstance(held, Split | Shared) and number not in self.destinations:
                return self.loop_of(number, held.axis)
        results = ((number, held) for number, held in enumerate(placed.results) if isinstance(held, Split | Shared))
        return next((self.loop_of_result(number, held.axis) for number, held in results), None)

    def along(self, loop: int, ranks: int) -> Placed | None:
        """Returns how the op runs when ``ranks`` share a loop; None where they cannot."""
        extent = self.loops[loop].extent
        return self.placed_along(loop) if extent > 0 and extent % ranks == 0 else None

    def along_shared(self, loop: int, parts: int) -> Placed | None:
        """Returns how the op runs when neighbouring ranks have the same of ``parts`` slices of a loop."""
        found = self.along(loop, parts)
        if found is None or self.loops[loop].kind != "parallel":
            return None
        operands, results = (
            tuple(Shared(held.axis, parts) if isinstance(held, Split) else held for held in each)
            for each in (found.operands, found.results)
        )
        return Placed(operands, results)

    def placed_along(self, loop: int) -> Placed | None:
        """As :meth:`along`, whatever the extent: what does not divide is the caller's to pad."""
        kind = self.loops[loop].kind
        if kind == "opaque":
            return None
        operands: list[Sharding] = []
        for number, indices in enumerate(self.operands):
            found = WHOLE if number in self.destinations else _sharding(indices or (), loop)
            if found is None:
                return None
            operands.append(found)
        if kind != "parallel":
            return Placed(tuple(operands), (Partial(_REDUCTIONS[kind]),) * len(self.results))
        results = [_sharding(indices, loop) for indices in self.results]
        if any(found is None or found == WHOLE for found in results):
            return None
        return Placed(tuple(operands), tuple(found for found in results if found is not None))


def _outermost(indices: tuple[Index, ...] | None, axis: int) -> int | None:
    index = () if indices is None else indices[axis]
    return index[0] if index else None


def _sharding(indices: Sequence[Index], loop: int) -> Sharding | None:
    """How a tensor is held of whose loops ``loop`` is shared; None where its slices are none of the tensor."""
    axes = [axis for axis, index in enumerate(indices) if loop in index]
    if not axes:
        return WHOLE
    return Split(axes[0]) if len(axes) == 1 and indices[axes[0]][0] == loop else None


class Loops:
    """Numbers the loops of a nest as it is written down."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []

    def add(self, extent: int, kind: Kind = "parallel") -> Index:
        """Adds a loop; returns the index of a dimension that it alone indexes, ``()`` for an extent of one."""
        if extent == 1:
            return ()
        self._loops.append(Loop(extent, kind))
        return (len(self._loops) - 1,)

    def each(self, shape: Sequence[int], opaque: Sequence[int] = ()) -> tuple[Index, ...]:
        """Adds a loop for each dimension of a shape, those of ``opaque`` not to be shared."""
        return tuple(self.add(extent, "opaque" if axis in opaque else "parallel") for axis, extent in enumerate(shape))

    def nest(
        self,
        op: ir.Operation,
        operands: Sequence[tuple[Index, ...] | None],
        results: Sequence[tuple[Index, ...]],
        stated: Sequence[Stated] = (),
    ) -> Nest:
        """Returns the nest; operands that are not named are extents, and no tensors."""
        rest = [None] * (len(op.operands) - len(operands))
        return Nest(tuple(self._loops), (*operands, *rest), tuple(results), stated=tuple(stated))


def aligned(value: ir.Value, indices: Sequence[Index]) -> tuple[Index, ...]:
    """Returns the index of an operand that broadcasts to ``indices``: from the last dimension on, as numpy does."""
    kind = tensor_type(value)
    assert kind is not None, "only tensors broadcast"
    shape, tail = list(kind.shape), indices[len(indices) - kind.rank :]
    return tuple(() if extent == 1 else index for extent, index in zip(shape, tail, strict=True))
