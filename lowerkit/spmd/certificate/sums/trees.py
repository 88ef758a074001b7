"""The lemma of the additions of a tree: neighbouring chunks of one size become one, until the sum is complete.

A sum that is made so has one shape, which says nothing of ranks: its chunks have one size, there are ``2**level`` of
them, and neighbours are added, then neighbours of these sums. It is rounded once, behind the last addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from lowerkit.spmd.certificate.graph import Form, element_of
from lowerkit.spmd.certificate.indices import number, total
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.relations import Chunk, Relation, View
from lowerkit.spmd.certificate.values import Classes

CHUNKS = 8
"""Leaves of each tree."""


class Tree(msgspec.Struct, frozen=True):
    """A sum of the program before that is made as a tree of chunks.

    Attributes:
        depth: how many terms it has.
        chunks: how many leaves the tree has.
        size: terms of a leaf.
        place: of the sum.
    """

    depth: int
    chunks: int
    size: int
    place: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether its shape hangs on the number of terms alone: as many chunks, as small as they can be.

        Chunks may have an even number of terms.
        """
        least = -(-self.depth // CHUNKS)
        return self.chunks == CHUNKS and self.size in (least, least + least % 2)


def added(form: Form, given: Sequence[Relation]) -> Chunk:
    """Returns what an elementwise op on chunks computes.

    Args:
        form: of the op.
        given: its operands, the destination last.

    Raises:
        Unproved: it is no sum of neighbouring chunks.
    """
    count = len(form.maps)
    identity = [[0, loop, 1] for loop in range(len(form.loops))]
    chunks = [each for each in given[:-1] if isinstance(each, Chunk)]
    if len(chunks) != count - 1 or form.captured or set(form.loops) - {"p"} or any(m != identity for m in form.maps):
        fail("it computes something else of chunks than their sum")
    held: list[Chunk | None] = [*chunks, None]
    rounded = False
    for name, _, read, results, inner in form.body or []:
        operands = [held[value] if value >= 0 else None for value in read]
        if rounded and name != "linalg.yield":
            fail("a sum is rounded before the last addition")
        if name == "arith.addf" and not inner:
            held.append(_joined(*operands))
        elif name == "arith.truncf" and operands[0] is not None:
            held.append(operands[0])
            rounded = True
        elif name == "linalg.yield" and operands[0] is not None:
            return operands[0]
        else:
            fail(f"it computes {name} of chunks")
        held += [None] * (len(results) - 1)
    return fail("it computes nothing of chunks")


def _joined(left: Chunk | None, right: Chunk | None) -> Chunk:
    if left is None or right is None:
        fail("it adds something else to chunks")
    behind = total((left.first, 1), (number(left.size), 1))
    same = replace(left, first=right.first) == right
    if not same or behind != right.first:
        fail("it adds chunks that are no neighbours of one size")
    return replace(left, level=left.level + 1)


def completed(chunk: Chunk, kind: str, classes: Classes) -> tuple[View, Tree] | None:
    """Returns what a chunk is where it is all of a sum, as it is rounded in the end; None where it is not."""
    if chunk.first != number(0) or chunk.size < chunk.depth:
        return None
    if element_of(kind) != element_of(classes.types[chunk.base]):
        return None
    return chunk.view, Tree(chunk.depth, 1 << chunk.level, chunk.leaf, classes.names[chunk.base])
