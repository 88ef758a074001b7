"""What is known, without their data, of weights that a split makes: statements that were checked when made.

Vocabulary
    slices   of a weight before: rank r has slice r along a dimension, zeros behind the end where it does not divide
    cut      of a weight before: a block of it, the same for all ranks
    chunks   of a weight before: cut along a dimension into neighbouring parts of one size, zeros behind the end
    rows     a small table of integers: rank r has row r, and its element j is ``(rank * r + step * j + start) / by``
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lowerkit.spmd.certificate.graph import shape_of
from lowerkit.spmd.certificate.indices import Index, Ranges, number, quotient, total


class Slices(msgspec.Struct, frozen=True, tag="slices"):
    """A weight of which each rank has a slice.

    Attributes:
        symbol: its name.
        source: the name of the weight before.
        kind: the type of the weight before.
        axis: the dimension.
    """

    symbol: str
    source: str
    kind: str
    axis: int


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """A weight that is a block of a weight before: neighbouring elements along each dimension.

    Attributes:
        symbol: its name.
        source: the name of the weight before.
        kind: the type of the weight before.
        starts: for each dimension, where the block begins.
    """

    symbol: str
    source: str
    kind: str
    starts: list[int]


class Chunks(msgspec.Struct, frozen=True, tag="chunks"):
    """A weight that is cut into chunks: ``[a, b, 1..., rest...]``, or ``[chunks * rest[0], rest[1:]...]``.

    Attributes:
        symbol: its name.
        source: the name of the weight before.
        kind: the type of the weight before.
        axis: the dimension that is cut.
        count: how many chunks, ``a * b``.
        size: extent of a chunk along the dimension.
    """

    symbol: str
    source: str
    kind: str
    axis: int
    count: int
    size: int

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of a chunk."""
        shape = shape_of(self.kind) or ()
        return (*shape[: self.axis], self.size, *shape[self.axis + 1 :])

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a weight of this shape holds the chunks, and these all of the weight before."""
        whole, rest = shape_of(self.kind) or (), self.rest
        if not 0 <= self.axis < len(whole) or min(self.size, self.count) < 1 or not rest or 0 in rest:
            return False
        if self.count * self.size < whole[self.axis]:
            return False
        if len(shape) == len(whole):
            return tuple(shape) == (self.count * rest[0], *rest[1:])
        front, tail = shape[: len(shape) - len(whole)], tuple(shape[len(shape) - len(whole) :])
        apart = len(front) > 1 and front[0] * front[1] == self.count and all(size == 1 for size in front[2:])
        return apart and tail == rest


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """A table of which each rank has a row.

    Attributes:
        symbol: its name.
        count: integers in a row; -1: a row is one integer, a tensor without dimensions.
        rank, step, start, by: see the module.
    """

    symbol: str
    count: int
    rank: int
    step: int = 0
    start: int = 0
    by: int = 1

    def element(self, rank: Index, place: Index, ranges: Ranges) -> Index:
        """Returns element ``place`` of the row of a rank."""
        line = total((rank, self.rank), (place, self.step), (number(self.start), 1))
        return quotient(line, self.by, ranges)


Fact = Slices | Cut | Chunks | Rows
