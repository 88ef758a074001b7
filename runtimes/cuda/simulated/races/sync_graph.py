"""What releases and acquires order between blocks: a graph of who learned what from whom, asked only on suspicion.

A *node* stands for knowledge, up to which time the accesses of each warp of the launch are known. It is made of at most
two other nodes and one snapshot of a block's clocks. 0 is the node that knows nothing. Kernels of many atomics make
many nodes and ask nothing; where a question comes, the answer is worked out once and kept.
"""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.scalar_types import Array

_FIRST_ROOM = 1024
_KEPT_BYTES = 1 << 27  # of answers


class SyncGraph:
    """The nodes of a launch."""

    def __init__(self, warps: int, warps_per_block: int) -> None:
        """``warps`` is how many the launch has."""
        self._warps = warps
        self._per_block = warps_per_block
        self._nodes: Array = np.zeros((_FIRST_ROOM, 3), np.int64)  # two nodes, and a snapshot (0: none)
        self._count = 1
        self._snapshots: Array = np.zeros((_FIRST_ROOM, warps_per_block), np.int64)
        self._blocks: Array = np.zeros(_FIRST_ROOM, np.int64)  # the first warp of the block of each snapshot
        self._snapshot_count = 1
        self._answers: dict[int, Array] = {}
        self._most_answers = max(4, _KEPT_BYTES // (8 * warps))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever released."""
        return self._count == 1

    def join(self, first: Array, second: Array) -> Array:
        """Returns, pair by pair, a node that knows what both know."""
        result = np.maximum(first, second)
        new = np.flatnonzero((first != 0) & (second != 0) & (first != second))
        if new.size:
            result = result.copy()
            result[new] = self._add(first[new], second[new], np.zeros(new.size, np.int64))
        return result

    def release(self, nodes: Array, first_warps: Array, rows: Array) -> Array:
        """Returns nodes that know what ``nodes`` know, and what ``rows`` say of the warps from ``first_warps`` on."""
        count = rows.shape[0]
        start, end = self._snapshot_count, self._snapshot_count + count
        if end > self._blocks.size:
            self._snapshots, self._blocks = _grown(self._snapshots, end), _grown(self._blocks, end)
        self._snapshots[start:end], self._blocks[start:end] = rows, first_warps
        self._snapshot_count = end
        return self._add(nodes, np.zeros(count, np.int64), np.arange(start, end))

    def _add(self, first: Array, second: Array, snapshots: Array) -> Array:
        start, end = self._count, self._count + first.size
        if end > len(self._nodes):
            self._nodes = _grown(self._nodes, end)
        self._nodes[start:end, 0], self._nodes[start:end, 1], self._nodes[start:end, 2] = first, second, snapshots
        self._count = end
        return np.arange(start, end)

    def knowledge(self, node: int) -> Array:
        """Returns up to which time a node knows each warp of the launch, int64; it is not to be written."""
        known = self._answers.get(node)
        if known is not None:
            return known
        known = np.zeros(self._warps, np.int64)
        seen = {0, node}
        stack = [node]
        while stack:
            first, second, snapshot = self._nodes[stack.pop()].tolist()
            if snapshot:
                at = int(self._blocks[snapshot])
                part = known[at : at + self._per_block]
                np.maximum(part, self._snapshots[snapshot], out=part)
            for each in (first, second):
                if each in seen:
                    continue
                seen.add(each)
                answer = self._answers.get(each)
                if answer is None:
                    stack.append(each)
                else:
                    np.maximum(known, answer, out=known)
        if len(self._answers) >= self._most_answers:
            del self._answers[next(iter(self._answers))]
        self._answers[node] = known
        return known


def _grown(array: Array, count: int) -> Array:
    grown = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
