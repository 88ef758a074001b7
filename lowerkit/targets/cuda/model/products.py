"""What a matrix product in tiles does: the work of one launch, and which tile is likely the fastest.

Vocabulary
    tile     ``m x n`` of the result, one block's work, ``k`` of the depth at a time
    band     8 tiles of rows, then the next column of tiles: the order of blocks
    split    parts of the depth that different blocks sum up; the parts are added by another launch
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from lowerkit.targets.cuda.model.cards import Card, card_of
from lowerkit.targets.cuda.model.estimate import L2_KEPT, Work, estimate
from lowerkit.targets.cuda.model.gemm_tile import ITEMS, GemmTile, Product, tiles_of
from lowerkit.targets.cuda.model.tma_tiles import (
    TMA_LEVEL,
    runs_of,
    tma_candidates,
    tma_fits,
    tma_registers,
    tma_shared_bytes,
)

BAND = 8
_MOST_REGISTERS = 255
ELEMENTS = frozenset(ITEMS)
_KINDS = {
    "f64": "matrix f64", "f32": "f32", "f16": "matrix bf16", "bf16": "matrix bf16", "i8": "matrix int8",
    "u8": "matrix int8",
}  # fmt: skip


# Rows, columns, depth and warps: tiles that ptxas assembled without spills for sm_80, sm_90 and sm_100. Of narrow
# elements all whose sums take 128 registers at most and whose steps are whole lines of 128 bytes; large tiles may do
# without these.
_SINGLE = (
    (16, 32, 32, 4), (16, 64, 32, 4), (32, 32, 32, 4), (64, 64, 32, 4), (64, 128, 16, 8), (128, 64, 32, 8),
    (128, 128, 16, 8),
)  # fmt: skip
_DOUBLE = (
    (16, 16, 16, 4), (16, 32, 16, 4), (32, 32, 16, 4), (64, 32, 16, 4), (64, 64, 16, 4), (64, 64, 16, 8),
    (128, 64, 16, 8),
)  # fmt: skip
_SPILL = {(16, 32, 128, 4), (64, 256, 64, 8), (32, 128, 128, 4), (32, 128, 128, 8)}
_NARROW = tuple(
    (m, n, k, warps)
    for m, n in itertools.product((16, 32, 64, 128, 256), repeat=2)
    for k in ((32, 64, 128) if m * n >= 128 * 128 else (64, 128))
    for warps in (4, 8)
    if n >= 32 and (m, n, k, warps) not in _SPILL and (warps == 4 or m * n >= 64 * 64) and m * n <= 128 * 32 * warps
)
_SPLITS = (2, 4, 8, 16)
_LEAST_STEPS = 4  # of a part of the depth
_GAIN = 1.05  # parts are taken where they save a twentieth: the gap to their sum is priced at the least


class Candidate(msgspec.Struct, frozen=True):
    """A tile and its predicted seconds."""

    tile: GemmTile
    seconds: float


def shared_bytes(tile: GemmTile, element: str, card: Card) -> int:
    """Returns bytes of shared memory of a block: what is loaded ahead.

    A step that registers are loaded from makes room before the next load; one that is read in place does not, and has
    16 bytes of barriers. Those of the TMA unit: see :func:`~.tma_tiles.tma_shared_bytes`.
    """
    if tile.tma:
        return tma_shared_bytes(tile, element)
    step = (tile.m + tile.n) * tile.k * ITEMS[element]
    return tile.stages * step + 16 if asynchronous(tile, element, card) else (tile.stages - 1) * step


def warp_grid(tile: GemmTile) -> tuple[int, int]:
    """Returns how many warps lie along rows and columns for ``mma.sync``, as Triton deals them out."""
    rows = columns = 1
    while rows * columns < tile.warps:
        if tile.m // 16 // rows >= tile.n // 16 // columns and rows < tile.m // 16:
            rows *= 2
        else:
            columns *= 2
    return rows, columns


def warp_tile(tile: GemmTile) -> tuple[int, int]:
    """Returns rows and columns that a warp makes, 16 x 8 at least: small tiles are made by several warps alike."""
    rows, columns = warp_grid(tile)
    return max(16, tile.m // rows), max(8, tile.n // columns)


def asynchronous(tile: GemmTile, element: str, card: Card) -> bool:
    """Returns whether a tile is made by the instructions of a warp group, which read shared memory themselves."""
    return element != "f32" and card.old_matrix_share < 1 and tile.m >= 64 and tile.warps >= 4


def registers(tile: GemmTile, element: str, card: Card) -> int:
    """Returns the registers of a thread, estimated: sums, operands of a step, an address for each 16 bytes loaded."""
    if tile.tma:
        return tma_registers(tile)
    item = ITEMS[element]
    sums = tile.m * tile.n // (32 * tile.warps)
    if element == "f64":  # two registers each, what else there is in 64 bits, too
        return 48 + 2 * sums * 5 // 4
    addresses = 2 * (tile.m + tile.n) * tile.k * item // (16 * 32 * tile.warps)
    if element == "f32":  # operands of several steps of the depth lie in registers beside the sums
        return 40 + sums * 11 // 4
    if asynchronous(tile, element, card):
        return 20 + sums + addresses
    rows, columns = warp_tile(tile)
    return 36 + sums * 6 // 5 + addresses + (rows + columns) * 16 * item // (32 * 4)


def operand_bytes(product: Product) -> int:
    """Returns bytes of A and B, each once."""
    return product.batch * (product.rows + product.columns) * product.depth * ITEMS[product.element]


def product_work(product: Product, tile: GemmTile, card: Card, operands: int | None = None) -> Work:
    """Returns the work of a product's launch; registers and shared memory are estimated.

    Args:
        product: it.
        tile: of a block.
        card: where it runs.
        operands: bytes of A and B, where elements stand in several places of a matrix: windows of an image.
    """
    item = ITEMS[product.element]
    made_bytes = product.batch * product.rows * product.columns * item
    once = operands or operand_bytes(product)
    blocks = tiles_of(product, tile) * tile.split
    steps = max(1, -(-product.depth // (tile.k * tile.split)))
    step_bytes = (tile.m + tile.n) * tile.k * item
    result = max(4, item) if tile.split > 1 else item
    written = made_bytes * tile.split * result // item
    rows, columns = warp_tile(tile)
    grouped = asynchronous(tile, product.element, card)
    if grouped:  # each 64 rows are an instruction of their own for each run, which reads all columns of that
        runs = len(runs_of(tile.n)) if tile.tma else 1
        read, made = (tile.m * runs + tile.m // 64 * tile.n) * tile.k * item, tile.m * tile.n
    else:
        read, made = tile.warps * (rows + columns) * tile.k * item, max(tile.m * tile.n, tile.warps * rows * columns)
    return Work(
        kind=_KINDS[product.element],
        flops=product.flops,
        issued=2 * blocks * steps * made * tile.k,
        moved=once + written,
        fetched=_fetched(product, tile, card, once) + written,
        between=written if tile.split > 1 else 0,
        loaded=blocks * (steps * step_bytes + tile.m * tile.n * result),
        stored=tile.m * tile.n * result,
        staged=steps * (read + step_bytes),
        blocks=blocks,
        threads=32 * tile.warps,
        registers=min(registers(tile, product.element, card), _MOST_REGISTERS),
        shared=shared_bytes(tile, product.element, card),
        steps=steps,
        stages=tile.stages,
        old_matrix=product.element != "f32" and not grouped,
        persistent=tile.persistent,
    )


def _fetched(product: Product, tile: GemmTile, card: Card, once: int) -> int:
    """Returns bytes of A and B out of device memory: once where they stay in L2, else once for each wave of blocks."""
    item = ITEMS[product.element]
    tiles_m, tiles_n = -(-product.rows // tile.m), -(-product.columns // tile.n)
    if once <= card.l2 * L2_KEPT * product.batch:
        return once
    tall = min(BAND, tiles_m)
    wide = min(-(-card.sms // tall), tiles_n)
    waves = -(-tiles_m * tiles_n // (tall * wide))
    dense = once / operand_bytes(product)  # less than 1 where elements stand in several places of a matrix
    wave = min(int((tall * tile.m + wide * tile.n) * product.depth * item * dense), once // product.batch)
    return max(once, product.batch * waves * wave)


def predict(product: Product, tile: GemmTile, card: Card) -> float:
    """Returns the predicted seconds of a product.

    Raises:
        ValueError: a block does not fit on an SM.
    """
    seconds = estimate(card, product_work(product, tile, card)).total
    if tile.split == 1:
        return seconds
    size = product.batch * product.rows * product.columns
    return seconds + adding_seconds(size, tile.split, ITEMS[product.element], card)


def adding_seconds(size: int, parts: int, item: int, card: Card) -> float:
    """Returns the predicted seconds of the launch that adds parts of K; results have ``item`` bytes each."""
    between = size * parts * max(4, item)
    work = Work(
        kind="f32", flops=size * parts, moved=between + size * item, between=between, blocks=-(-size // 512),
        threads=128,
    )  # fmt: skip
    return estimate(card, work).total


def rank(product: Product, candidates: Sequence[GemmTile], card: Card) -> list[Candidate]:
    """Returns the candidates that fit on an SM without spills, fastest first.

    Of equal ones that of the TMA unit, which takes the fewest instructions, then that with longer steps, whose lines
    are whole, then that with more of them loaded ahead, where that costs nothing, then the smaller one comes first.
    """
    found: list[Candidate] = []
    for tile in candidates:
        # Room for all stages, whatever the compiler makes of them, and the barriers.
        most = tile.stages * (tile.m + tile.n) * tile.k * ITEMS[product.element] + 16
        fits = max(most, shared_bytes(tile, product.element, card)) <= card.block_shared
        if fits and registers(tile, product.element, card) <= _MOST_REGISTERS:
            found.append(Candidate(tile, predict(product, tile, card)))
    return sorted(
        found,
        key=lambda each: (
            each.seconds,
            not each.tile.tma,
            -each.tile.k,
            -each.tile.stages if each.tile.tma else 0,
            each.tile.m * each.tile.n,
            msgspec.structs.astuple(each.tile),
        ),
    )


def product_fits(product: Product, tile: GemmTile, level: str) -> bool:
    """Returns whether there is a kernel for a tile of a product."""
    sizes = (tile.m, tile.n, tile.k, tile.warps, tile.split)
    known = product.element in ELEMENTS and min(product.rows, product.columns, product.depth, product.batch) >= 1
    powers = all(size > 0 and size & (size - 1) == 0 for size in sizes) and min(sizes[:3]) >= 16
    if tile.tma:
        powers = level == TMA_LEVEL and min(sizes) > 0 and tma_fits(product, tile)
    elif tile.persistent:
        return False
    parts = tile.split == 1 or (product.parts and tile.split <= product.depth)
    inside = tile.warps <= 8 and 1 <= tile.stages <= 8 and parts
    return known and powers and inside and bool(rank(product, [tile], card_of(level)))


@lru_cache(maxsize=1024)
def candidates(product: Product) -> tuple[GemmTile, ...]:
    """Returns the tiles that are worth a look: those of the tables, cut to the powers of two that hold the product."""
    least = 32 if product.element in ("i8", "u8") else 16  # what one instruction takes of the depth
    rows, columns = _power(product.rows, 16), _power(product.columns, 16)
    depth = _power(product.depth, least)
    single = product.element in ("f32", "f64")
    table = {"f32": _SINGLE, "f64": _DOUBLE}.get(product.element, _NARROW)
    found = [
        GemmTile(m, min(n, columns), min(k, depth), warps, stages)
        for m, n, k, warps in table
        if m <= rows and n <= max(columns, 64) and k <= max(depth, 64)
        for stages in ((3,) if single else (4, 6) if m <= 32 else (3, 4))
    ]
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def best_tile(product: Product, level: str) -> GemmTile:
    """Returns the tile that is predicted to be the fastest; see :func:`shortlist`."""
    return shortlist(product, level)[0].tile


def shortlist(product: Product, level: str) -> list[Candidate]:
    """Returns the tiles for the card that stands for a level, fastest first.

    Where the depth may be cut into parts, that of tiles whose blocks are fewer than SMs is, and has to save some time.
    """
    card = card_of(level)
    ranked = rank(product, [*candidates(product), *tma_candidates(product, card)], card)
    few = [each.tile for each in ranked if product.parts and tiles_of(product, each.tile) < card.sms]
    parts = [
        msgspec.structs.replace(tile, split=count)
        for tile in few
        for count in _SPLITS
        if product.depth >= count * tile.k * _LEAST_STEPS
    ]
    both = [*ranked, *rank(product, parts, card)]
    return sorted(both, key=lambda each: each.seconds * (_GAIN if each.tile.split > 1 else 1.0))


def _power(size: int, least: int) -> int:
    """The least power of two that is at least ``size`` and ``least``."""
    return max(least, 1 << max(size - 1, 0).bit_length())
