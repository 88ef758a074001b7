"""Which word of tensor memory each thread of a warp has in each register of tcgen05.ld and tcgen05.st.

``32x32b``: thread t has lane t; register r has column r. ``16x32bx2``: threads t and 16 + t have lane t; those of the
second half have columns that lie ``split`` further on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import CELL_LANES

# How many lanes, by name.
SHAPES: Mapping[str, int] = {"32x32b": 32, "16x32bx2": 16}
REGISTERS = (1, 2, 4, 8, 16, 32, 64, 128)
_SUBPARTITION = 32  # lanes that a warp of a warpgroup reaches


@dataclass(frozen=True)
class Shape:
    """What one instruction moves.

    Attributes:
        lanes: how many, 16 or 32.
        registers: of each thread.
        split: of 16 lanes, how much further on the columns of the second half of the threads lie.
    """

    lanes: int
    registers: int
    split: int

    @property
    def words(self) -> tuple[Array, Array]:
        """Lane [32, 1] and column [32, registers] of each word, counted from the address, int64."""
        thread = np.arange(WARP)[:, None]
        return thread % self.lanes, np.arange(self.registers)[None] + thread // self.lanes * self.split

    @property
    def cells(self) -> tuple[Array, Array]:
        """Lane and column of one word of each cell, int64 [cells]."""
        lanes, columns = np.broadcast_arrays(*self.words)
        first = lanes % CELL_LANES == 0
        return lanes[first], columns[first]

    def problem_of(self, warp: int, lane: int) -> str:
        """Returns why a warp (its number in the block) cannot reach the lanes from ``lane`` on; empty if it can."""
        low = warp % (128 // _SUBPARTITION) * _SUBPARTITION
        if lane % CELL_LANES or not low <= lane <= low + _SUBPARTITION - self.lanes:
            return f"lanes {lane} to {lane + self.lanes - 1}, and warp {warp} reaches lanes {low} to {low + 31}"
        return ""
