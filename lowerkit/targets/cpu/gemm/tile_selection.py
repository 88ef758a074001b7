"""Choice of the register tile: which shape computes a result in the fewest cycles, by a model of ports and caches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from lowerkit.targets.cpu.levels import CpuFeatures

__all__ = ["MOST_CHAINS", "Tile", "choose_tile", "even_split", "evict_each_other", "l2_bytes", "tile_cycles"]

MOST_CHAINS = 4
_FMA_LATENCY = 4
_L2_BYTES_PER_CYCLE = 32
# Lines of A per L1 set: 12 ways, some of them for B.
_MOST_LINES_PER_SET = 7


@dataclass(frozen=True)
class Tile:
    """Shape of a register tile.

    Attributes:
        rows: the most rows of one tile; edge tiles have fewer.
        vectors: vector registers along a row.
        lanes: elements of a vector register.
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def panel(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes

    def chains(self, rows: int, latency: int = _FMA_LATENCY) -> int:
        """Accumulator sets that a tile of ``rows`` needs to hide the FMA latency (two FMAs start each cycle)."""
        return max(1, min(MOST_CHAINS, 2 * latency // (rows * self.vectors)))


def l2_bytes(cpu: CpuFeatures) -> int:
    """L2 cache per core that blocking may count on: the smallest among the CPUs of the level."""
    return 2 << 20 if cpu.amx else (1 << 20 if cpu.vector_bits == 512 else 256 << 10)


def even_split(count: int, most: int) -> tuple[int, int, int]:
    """Splits ``count`` into the fewest parts of at most ``most``: ``(parts, size, how many have one more)``."""
    parts = max(1, -(-count // most))
    return parts, count // parts, count % parts


def tile_cycles(rows: int, vectors: int, vector_bytes: int, depth: int, most_chains: int = MOST_CHAINS) -> float:
    """Estimated cycles of one tile: FMA ports, load ports, latency, L2 bandwidth for B, and the fixed part."""
    fmas = rows * vectors / 2
    loads = (rows + vectors) / 2
    chains = max(1, min(most_chains, 2 * _FMA_LATENCY // (rows * vectors)))
    latency = _FMA_LATENCY / chains
    stream = vectors * vector_bytes / _L2_BYTES_PER_CYCLE
    return depth * max(fmas, loads, latency, stream) + 30 + 3 * rows * vectors


@lru_cache(maxsize=4096)
def choose_tile(
    rows: int | None,
    columns: int,
    depth: int,
    lanes: int,
    registers: int,
    most_rows: int = 64,
    row_period: int = 0,
    most_chains: int = MOST_CHAINS,
) -> Tile:
    """Returns the tile with the least estimated time for a ``rows`` x ``columns`` result.

    Args:
        rows: result rows; None when unknown until run time, then full tiles count.
        columns: result columns.
        depth: length of the sums.
        lanes: elements of a vector register.
        registers: vector registers of the CPU.
        most_rows: upper limit of the tile's rows.
        row_period: tiles must divide into rows of this many (a line of an image), 0 for no such rule.
        most_chains: upper limit of the accumulator sets that share the depth.
    """
    vector_bytes = 64 if registers == 32 else 32
    best: tuple[float, int, Tile] | None = None
    for vectors in range(1, min(8, -(-columns // lanes)) + 1):
        # One register for the broadcast; B's vectors and the accumulators take the rest.
        fitting = (registers - 1 - vectors) // vectors
        for limit in range(1, min(fitting, most_rows) + 1):
            tile = Tile(limit, vectors, lanes)
            panels = -(-columns // tile.panel)
            if row_period and limit < row_period:
                parts, size, larger = even_split(row_period, limit)
                lines = 1 if rows is None else rows // row_period
                parts, larger = parts * lines, larger * lines
            else:
                count = 840 if rows is None else rows
                parts, size, larger = even_split(count, limit)
            cycles = larger * tile_cycles(size + 1, vectors, vector_bytes, depth, most_chains)
            cycles += (parts - larger) * tile_cycles(size, vectors, vector_bytes, depth, most_chains) if size else 0
            # A tile whose edge is never reached is the same as a smaller one: keep the smallest name for it.
            key = (cycles * panels, -vectors if rows == 1 else 0, tile)
            if best is None or key[:2] < best[:2]:
                best = key
    assert best is not None
    return best[2]


def evict_each_other(rows: int, stride_bytes: int) -> bool:
    """True when so many rows at this distance share the sets of L1 (64 sets of 12 ways) that they push each other out
    before the next element of the same cache line is read."""
    if stride_bytes % 64:
        return False
    distinct = 64 // math.gcd(64, stride_bytes // 64)
    return rows > _MOST_LINES_PER_SET * distinct
