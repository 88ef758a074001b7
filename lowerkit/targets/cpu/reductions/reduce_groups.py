"""Dimensions of a reduction by sort: runs of neighbours that are all kept or all reduced act as one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.plan import KernelExpr, product

__all__ = ["DimGroup", "group_dims", "result_groups"]


@dataclass(frozen=True)
class DimGroup:
    """Neighbouring dimensions that are all kept or all reduced."""

    dims: tuple[int, ...]
    reduced: bool
    size: Index
    extent: KernelExpr
    stride: Index


def group_dims(
    frame: KernelFrame, sizes: Sequence[Index], extents: Sequence[KernelExpr], axes: Sequence[int]
) -> list[DimGroup]:
    """Merges neighbouring dimensions of one sort; unit dimensions belong to no group.

    In an invariant kernel those that are kept do: as a larger extent would, they decide along what is summed.
    """
    text = frame.text
    strides = text.row_major(sizes)
    runs: list[list[int]] = []
    for dim, size in enumerate(sizes):
        if size == 1 and (dim in axes or not text.invariant):
            continue
        if runs and (runs[-1][-1] in axes) == (dim in axes):
            runs[-1].append(dim)
        else:
            runs.append([dim])
    return [
        DimGroup(
            tuple(run),
            run[0] in axes,
            text.iproduct([sizes[dim] for dim in run]),
            product([extents[dim] for dim in run]),
            strides[run[-1]],
        )
        for run in runs
    ]


def result_groups(groups: Sequence[DimGroup], rank: int, axes: Sequence[int], keep_dims: bool) -> list[list[int]]:
    """Dimensions of the result for each kept group, then each left-over (unit) dimension on its own."""
    kept = [dim for dim in range(rank) if keep_dims or dim not in axes]
    place = {dim: position for position, dim in enumerate(kept)}
    result = [[place[dim] for dim in group.dims] for group in groups if not group.reduced]
    used = {position for run in result for position in run}
    return result + [[position] for position in range(len(kept)) if position not in used]
