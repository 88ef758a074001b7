"""What is known, without their data, of weights that a split makes: statements that were checked when made.

Vocabulary
    slices   of a weight before: rank r has slice r along a dimension, zeros behind the end where it does not divide
    cut      of a weight before: a block of it, the same for all ranks
    rows     a small table of integers: rank r has row r, and its element j is ``(rank * r + step * j + start) / by``
"""

from __future__ import annotations

import msgspec

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


Fact = Slices | Cut | Rows
