"""The loop nest of an elementwise kernel: which dimensions collapse, which one is vectorized, what a task is.

Vocabulary
    group      neighbouring iteration dimensions that every operand walks contiguously (or not at all): one loop.
    row        one pass over the innermost group.

``[1, 64, 56, 56]`` with identity maps everywhere becomes one group of 200,704; with a per-channel operand it becomes
(64) x (3136). Groups are ordered as the first output lies in memory, so the innermost one is contiguous there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.text.kernel_text import Index, KernelText
from lowerkit.targets.cpu.text.linear_access import Access, adjacent
from lowerkit.targets.cpu.vector.body import VectorBody
from lowerkit.targets.cpu.vector.epilogue import Input
from lowerkit.targets.plan import KernelExpr, product

__all__ = ["ElementwiseNest", "Group", "collapse"]


@dataclass(frozen=True)
class Group:
    """One loop: its iteration dimensions, outermost first, and its size in both forms."""

    dims: tuple[int, ...]
    size: Index
    extent: KernelExpr


@dataclass(frozen=True)
class ElementwiseNest:
    """An elementwise computation ready for emission.

    Attributes:
        groups: the loops, outermost first; accesses have one stride per group.
        body: what is computed; None copies the first input to the first output.
        inputs: one per block argument of the body.
        outputs: the places of the results.
        rank: the number of iteration dimensions before collapsing.
    """

    groups: tuple[Group, ...]
    body: VectorBody | None
    inputs: tuple[Input, ...]
    outputs: tuple[Access, ...]
    rank: int

    @property
    def element_bytes(self) -> int:
        """Bytes that one point moves."""
        reads = sum(source.buffer.bytes for source in self.inputs if isinstance(source, Access))
        return reads + sum(access.buffer.bytes for access in self.outputs)

    def grain(self) -> int:
        """Points of a task: about 32 KiB of traffic, fewer where the arithmetic is what takes the time."""
        work = self.element_bytes + (self.body.op_count if self.body is not None else 0)
        return max(1024, (1 << 16) // max(2, work) // 256 * 256)


def collapse(
    text: KernelText,
    sizes: Sequence[Index],
    extents: Sequence[KernelExpr],
    body: VectorBody | None,
    inputs: Sequence[Input],
    outputs: Sequence[Access],
) -> ElementwiseNest:
    """Orders the dimensions as the first output lies in memory, drops unit ones, and merges what can be merged."""
    accesses = [source for source in inputs if isinstance(source, Access)] + list(outputs)
    place = outputs[0].positions
    order = [dim for dim in range(len(sizes)) if sizes[dim] != 1]
    order.sort(key=lambda dim: len(sizes) if place[dim] is None else place[dim] or 0)
    keeps_coordinates = body is not None and body.uses_index
    merged: list[list[int]] = []
    for dim in order:
        if merged and not keeps_coordinates and all(adjacent(a, merged[-1][-1], dim, sizes) for a in accesses):
            merged[-1].append(dim)
        else:
            merged.append([dim])
    groups = tuple(
        Group(tuple(dims), text.iproduct([sizes[d] for d in dims]), product([extents[d] for d in dims]))
        for dims in merged
    )

    def grouped(source: Input) -> Input:
        if not isinstance(source, Access):
            return source
        strides = tuple(source.strides[group.dims[-1]] for group in groups)
        positions = tuple(source.positions[group.dims[-1]] for group in groups)
        return Access(source.buffer, strides, positions, source.offset)

    return ElementwiseNest(
        groups,
        body,
        tuple(grouped(source) for source in inputs),
        tuple(access for access in map(grouped, outputs) if isinstance(access, Access)),
        len(sizes),
    )
