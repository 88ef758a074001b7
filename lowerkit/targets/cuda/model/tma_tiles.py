"""Tiles of products whose operands the TMA unit loads: which there are, and what they take of an SM.

Vocabulary
    run      columns of a tile that are a power of two; a tile of 192 columns is a run of 128 and one of 64, whose
             products share the rows of A
    piece    what is stored at a time: all rows of a tile, some columns

They are for ``sm_90``: earlier cards have no such unit, and for later ones Triton makes another kernel of the text.
"""

from __future__ import annotations

import itertools

import msgspec

from lowerkit.targets.cuda.model.cards import Card
from lowerkit.targets.cuda.model.gemm_tile import ITEMS, GemmTile, Product, tiles_of

TMA_LEVEL = "sm_90"
TMA_ELEMENTS = frozenset({"bf16", "f16"})
PIECE_BYTES = 32 << 10
_PIECE_VALUES = 64  # of a thread: ptxas spilled gelu of 128, never of 64; half of it beside 192 sums
_LEAST_PIECE = 32  # columns
_BARRIER = 8  # bytes, of each stage and run
# Registers of a thread beside its sums, found by ptxas: 26 in each kernel of one tile; the loop over tiles keeps its
# place beside that of the loop over the depth, 30 to 40.
_ONE, _SEVERAL = 28, 40
_MOST_SUMS, _MOST_SUMS_IN_RUNS = 128, 192
_FEW = 2  # tiles for each SM
_ROWS, _COLUMNS, _STEPS, _STAGES = (64, 128, 256), (64, 96, 128, 192, 256), (64, 128), (3, 4, 6)


def runs_of(columns: int) -> tuple[int, ...]:
    """Returns the runs of so many columns, the longest first."""
    return tuple(1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1)


def warps_of(rows: int) -> int:
    """Returns the warps of a block: four make 64 rows; more rows are shared by two such groups, which take turns."""
    return 4 if rows <= 64 else 8


def pieces_of(tile: GemmTile, run: int, widest: int) -> int:
    """Returns in how many pieces a run of a tile is stored.

    Args:
        tile: it.
        run: columns of the run.
        widest: bytes of the widest element that is stored.
    """
    values = (_PIECE_VALUES if _sums(tile) <= _MOST_SUMS else _PIECE_VALUES // 2) * 32 * tile.warps
    count = 1
    while run // count > _LEAST_PIECE and tile.m * run // count > min(values, PIECE_BYTES // widest):
        count *= 2
    return count


def tma_registers(tile: GemmTile) -> int:
    """Returns the registers of a thread, estimated: sums, and no address, since one thread names a box."""
    return (_SEVERAL if tile.persistent else _ONE) + _sums(tile)


def tma_shared_bytes(tile: GemmTile, element: str) -> int:
    """Returns bytes of shared memory of a block.

    What is loaded ahead, and a barrier for each load; a block that goes on loading while it stores has room for a
    piece beside that.
    """
    step = (tile.m + tile.n) * tile.k * ITEMS[element] + _BARRIER * len(runs_of(tile.n))
    return tile.stages * step + (PIECE_BYTES if tile.persistent else 0)


def tma_fits(product: Product, tile: GemmTile) -> bool:
    """Returns whether there is a kernel for such a tile of a product, whatever it takes of an SM."""
    runs = runs_of(tile.n)
    whole = tile.m in _ROWS and tile.n % 32 == 0 and tile.k in (32, *_STEPS) and len(runs) <= 2 and tile.n <= 256
    warps = tile.warps == warps_of(tile.m) and _sums(tile) <= (_MOST_SUMS if len(runs) == 1 else _MOST_SUMS_IN_RUNS)
    # Two runs in a loop over tiles: ptxas puts the products of tensor cores one after the other.
    loops = not tile.persistent or (tile.split == 1 and len(runs) == 1)
    return product.described and product.element in TMA_ELEMENTS and whole and warps and loops


def tma_candidates(product: Product, card: Card) -> list[GemmTile]:
    """Returns the tiles that are worth a look: none of operands that the unit cannot load, or of few rows.

    A block makes several tiles only where there are more of them than SMs. Tiles of two runs, which read A twice, are
    for products of few tiles, which would leave SMs idle otherwise. Of a tall tile and the wide one of the same area
    the wide one is taken, unless there are more of those: each 64 rows read all columns out of shared memory, and with
    128 of them that takes, beside what is loaded, more than its bandwidth at the peak of the tensor cores.
    """
    if not product.described or card.level != TMA_LEVEL or product.rows <= 32 or product.depth < 64:
        return []
    found: list[GemmTile] = []
    for m, n, k, stages, persistent in itertools.product(_ROWS, _COLUMNS, _STEPS, _STAGES, (False, True)):
        tile = GemmTile(m, n, k, warps_of(m), stages, tma=True, persistent=persistent)
        useful = n < 2 * product.columns and m < 2 * product.rows and k <= product.depth
        tiles = tiles_of(product, tile)
        several = tiles > card.sms if persistent else len(runs_of(n)) == 1 or tiles <= _FEW * card.sms
        if useful and several and tma_fits(product, tile) and not _better_turned(product, tile):
            found.append(tile)
    return found


def _better_turned(product: Product, tile: GemmTile) -> bool:
    """Whether a tall tile is as good as one with rows and columns exchanged."""
    if tile.m <= tile.n or tile.n not in _ROWS or tile.m >= 2 * product.columns:
        return False
    turned = msgspec.structs.replace(tile, m=tile.n, n=tile.m, warps=warps_of(tile.n))
    return tma_fits(product, turned) and tiles_of(product, turned) <= tiles_of(product, tile)


def _sums(tile: GemmTile) -> int:
    """Sums of a thread."""
    return tile.m * tile.n // (32 * tile.warps)
