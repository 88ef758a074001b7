"""Weights that are cut into chunks of K: where their elements lie, and zeros where K has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.spmd.certificate.facts import Chunks
from lowerkit.spmd.certificate.graph import shape_of
from lowerkit.spmd.certificate.indices import Index, number, quotient, remainder, total
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.moves import ranges_of
from lowerkit.spmd.certificate.relations import View, element
from lowerkit.spmd.certificate.values import Classes

Array = np.ndarray[Any, Any]


def places_of(fact: Chunks, shape: Sequence[int]) -> list[Array]:
    """Returns of each element of a weight of ``shape`` where it lies in the source, beyond the end where it is zero."""
    grid: list[Array] = list(np.indices(tuple(shape), sparse=True))
    rest = list(fact.rest)
    if len(shape) > len(rest):
        own = grid[len(shape) - len(rest) :]
        chunk = grid[0] * shape[1] + grid[1]
    else:
        chunk, first = np.divmod(grid[0], rest[0])
        own = [first, *grid[1:]]
    own[fact.axis] = own[fact.axis] + chunk * fact.size
    return own


def chunked_weight(fact: Chunks, kind: str, classes: Classes) -> View:
    """Returns what a weight of type ``kind`` is, of which a fact is known.

    Raises:
        Unproved: the fact is one of another type.
    """
    shape = list(shape_of(kind) or ())
    if not fact.fits(shape):
        fail(f"{kind} is not {fact.kind} in {fact.count} chunks of {fact.size}")
    ranges: Mapping[str, int | None] = ranges_of(kind, 1)
    own: list[Index] = element(len(shape))
    rest = fact.rest
    if len(shape) > len(rest):
        chunk = total((own[0], shape[1]), (own[1], 1))
        index = own[len(shape) - len(rest) :]
    else:
        chunk = quotient(own[0], rest[0], ranges)
        index = [remainder(own[0], rest[0], ranges), *own[1:]]
    if rest[fact.axis] == 1:
        index[fact.axis] = number(0)
    index[fact.axis] = total((index[fact.axis], 1), (chunk, fact.size))
    return View(classes.weight(fact.source, fact.kind), tuple(index))
