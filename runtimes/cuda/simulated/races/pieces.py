"""Which pieces of global memory can have races: what a launch may write, and what lies over it."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.cuda.simulated.device_memory import Allocation, DeviceMemory
from lowerkit.runtimes.cuda.simulated.races.shadow import Shadow


def watched_pieces(memory: DeviceMemory, granule: int, columns: int) -> dict[int, Sequence[Shadow]]:
    """Returns the pieces by the identity of the store that they lie in.

    Buffers that overlap are one piece, so that whoever comes by one of them meets whoever comes by another.
    """
    by_store: dict[int, list[Allocation]] = {}
    for each in memory.allocations:
        by_store.setdefault(id(each.store), []).append(each)
    pieces: dict[int, Sequence[Shadow]] = {}
    for number, allocations in by_store.items():
        found = [_shadow(group, granule, columns) for group in _overlapping(allocations) if _is_written(group)]
        if found:
            pieces[number] = found
    return pieces


def _overlapping(allocations: list[Allocation]) -> list[list[Allocation]]:
    groups: list[list[Allocation]] = []
    end = -1
    for each in sorted(allocations, key=lambda each: each.base - each.origin):
        start = each.base - each.origin
        if start >= end or not groups:
            groups.append([])
        groups[-1].append(each)
        end = max(end, start + each.size)
    return groups


def _is_written(group: list[Allocation]) -> bool:
    return any(each.writable and each.size for each in group)


def _shadow(group: list[Allocation], granule: int, columns: int) -> Shadow:
    first = min(group, key=lambda each: each.base - each.origin)
    start = first.base - first.origin
    end = max(each.base - each.origin + each.size for each in group)
    return Shadow(start, end, granule, columns, " and ".join(each.name for each in group), start, shared=False)
