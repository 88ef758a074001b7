"""How many rows a block takes, how long a piece of them it holds, and with how many warps."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.plan import KernelExpr

_MACHINE = 264
"""Blocks that fill a large card: two for each multiprocessor."""
_LONGEST = 16384
"""Elements of 4 bytes that a block holds in registers: 32 for each thread of 16 warps."""


@dataclass(frozen=True)
class RowTile:
    """``rows x columns`` elements, powers of two; ``whole`` where the columns hold a row."""

    rows: int
    columns: int
    whole: bool
    warps: int

    @property
    def words(self) -> str:
        """The tile in words, for notes."""
        held = "rows in registers" if self.whole else "rows in pieces"
        return f"{held}, tiles of {self.rows} x {self.columns}, {self.warps} warps"


def choose_rows(
    rows: KernelExpr, length: KernelExpr, along: bool, width: int, longest: int = _LONGEST, *, cut: bool = False
) -> RowTile:
    """Returns the tile for ``rows`` rows of ``length``.

    Args:
        rows, length: open extents count as many.
        along: whether the elements of a row lie one behind the other; otherwise those of neighbouring rows do.
        width: bytes of an element in registers.
        longest: elements of 4 bytes that may be held.
        cut: long rows are cut into parts, so that few blocks are enough of them.
    """
    limit = longest * 4 // width
    power = power_of_two(length) if isinstance(length, int) else limit + 1
    if along:
        whole = power <= limit
        columns = power if whole else min(limit, 4096 if isinstance(length, int) else 1024)
        count = max(1, 1024 // columns)
        least = 1
    else:
        whole = power <= limit // 32
        columns = power if whole else 64
        count = 64 if cut and not whole else max(16, min(64, 2048 // columns))
        least = count if cut else 16
    if isinstance(rows, int):
        count = min(count, power_of_two(rows))
        while count > least and -(-rows // count) < _MACHINE:
            count //= 2
    elements = count * columns * width // 4
    warps = max(1, elements // 256) if elements <= 2048 else 8 if elements <= 4096 else 16
    return RowTile(count, columns, whole, warps)


def power_of_two(size: int) -> int:
    """Returns the least power of two that is at least ``size``."""
    return 1 << max(0, size - 1).bit_length()
