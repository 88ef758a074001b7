"""How the ranks along an axis of a mesh hold a tensor, and what an op asks of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, shape_of

Reduction = Literal["sum", "product", "min", "max"]


@dataclass(frozen=True)
class Whole:
    """Every rank holds all of it."""


@dataclass(frozen=True)
class Split:
    """Rank r holds slice number r along dimension ``axis``."""

    axis: int


@dataclass(frozen=True)
class Shared:
    """Rank r of n holds slice number ``r * parts / n`` along dimension ``axis``: neighbours have the same one."""

    axis: int
    parts: int


@dataclass(frozen=True)
class Partial:
    """Every rank holds a term; the tensor is their reduction."""

    reduction: Reduction = "sum"


Sharding: TypeAlias = Whole | Split | Shared | Partial

WHOLE = Whole()
PARTIAL = Partial()


@dataclass(frozen=True)
class Placed:
    """How an op runs on each rank.

    Attributes:
        operands: how it wants each operand; operands that are no tensors are :data:`WHOLE`.
        results: how each of its results is held then.
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]


def local_type(value: ir.Value, sharding: Sharding, ranks: int) -> ir.Type:
    """Returns the type of what one rank holds of a value whose whole type is that of ``value``.

    Slices are of one size: those of a weight that does not divide are padded.
    """
    if not isinstance(sharding, Split | Shared):
        return value.type
    shape = shape_of(value)
    shape[sharding.axis] = -(-shape[sharding.axis] // parts_of(sharding, ranks))
    return ir.RankedTensorType.get(shape, element_of(value))


def parts_of(held: Split | Shared, ranks: int) -> int:
    """Returns how many slices there are."""
    return ranks if isinstance(held, Split) else held.parts


def divides(value: ir.Value, axis: int, ranks: int) -> bool:
    """Whether a tensor can be split along a dimension: its extent is known, and a multiple of the ranks."""
    extent = shape_of(value)[axis]
    return extent > 0 and extent % ranks == 0
