"""Tiles of convolutions: how a step of K is read, in how many parts K is summed, and which are likely the fastest.

A convolution is predicted as the product that it is, with two differences: the input comes from device memory once and
not once for each tap, and steps that stay within a tap are filled up to whole ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from lowerkit.targets.cuda.model.cards import Card, card_of
from lowerkit.targets.cuda.model.estimate import estimate
from lowerkit.targets.cuda.model.products import ELEMENTS, GemmTile, Product, adding_seconds, product_work, registers

_FITS = 1 << 31  # sums of parts that are numbered in 32 bits
_LEAST_STEPS = 4
_WASTE = 1.125
# A flat step in bytes of shared memory that would take as long: an instruction that loads is as good as 128 bytes for
# its 32 lanes, and the address and mask of a number some operations.
_INSTRUCTION, _COORDINATES = 4, 8
_BARRIERS = 64  # bytes of shared memory beside what is loaded ahead
# Registers of a thread, found by looking at ptxas: for coordinates and masks of pixels, for each number that is loaded
# by itself, and for each sum where the epilogue reads a whole tile; in all so many that what is not counted has room.
_ONE_TAP, _TAPS, _FLAT = 30, 45, 2
_EPILOGUE = 0.75
_MOST_REGISTERS = 240
_FLOATS = ((16, 16, 1), (16, 64, 4), (32, 32, 4), (64, 32, 4), (64, 64, 4), (128, 64, 8))
_NARROW = tuple(
    (m, n, warps)
    for m, n, warps in itertools.product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (4, 8))
    if m * n <= 128 * 32 * warps and (warps == 4 or m * n >= 128 * 128)
)


class ConvTile(msgspec.Struct, frozen=True, tag="conv"):
    """How a convolution is cut.

    Attributes:
        m, n, k: pixels and output channels of a tile, and products of a step.
        warps, stages: of a block, and how many steps are loaded ahead.
        whole_taps: a step stays within one tap; else K is taken flat, over taps and channels.
        steps: of a whole K.
        splits: parts of K.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    whole_taps: bool
    steps: int
    splits: int

    @property
    def steps_each(self) -> int:
        """Steps of one part of K."""
        return -(-self.steps // self.splits)


class ConvShape(msgspec.Struct, frozen=True, tag="conv"):
    """What the choice of a tile depends on.

    Attributes:
        element: of input and filter.
        rows: pixels of the result.
        outputs, groups, depth: output channels of a group, groups, input channels of a group.
        taps: of a window.
        pixels: of the input that are read for each of the result, about.
        parts: whether K may be cut into parts.
        extra: whole tiles that the epilogue reads.
    """

    element: str
    rows: int
    outputs: int
    groups: int
    taps: int
    depth: int
    pixels: int
    parts: bool
    extra: int


class ConvCandidate(msgspec.Struct, frozen=True):
    """A tile and its predicted seconds."""

    tile: ConvTile
    seconds: float


@lru_cache(maxsize=1024)
def conv_shortlist(shape: ConvShape, level: str) -> Sequence[ConvCandidate]:
    """Returns the tiles for the card that stands for a level, fastest first; of equal ones that with longer steps."""
    card = card_of(level)
    width = {"f32": 4, "i8": 1}.get(shape.element, 2)
    whole, steps_of = _ways(shape, width)
    results = shape.rows * shape.outputs * shape.groups
    found: list[tuple[float, int, int, ConvTile]] = []
    for m, n, warps in _FLOATS if shape.element == "f32" else _NARROW:
        if (m > 16 and m >= 2 * shape.rows) or (n > 16 and n >= 2 * shape.outputs):
            continue
        for (k, steps), stages in itertools.product(steps_of, (2, 3, 4)):
            if (stages > 2 and stages > steps) or stages == 2 < steps:
                continue
            for splits in (1, 2, 4, 8, 16) if shape.parts else (1,):
                each = -(-steps // splits)
                if splits > 1 and (each < _LEAST_STEPS or results * splits >= _FITS):
                    break
                tile = ConvTile(m, n, k, warps, stages, whole, steps, -(-steps // each))
                seconds = _predict(shape, tile, card, width)
                if seconds is not None:
                    found.append((seconds, -k, m * n, tile))
    found.sort(key=lambda each: (each[:3], msgspec.structs.astuple(each[3])))
    return [ConvCandidate(tile, seconds) for seconds, _, _, tile in found]


def conv_fits(shape: ConvShape, tile: ConvTile, level: str) -> bool:
    """Returns whether a tile is one of :func:`conv_shortlist`."""
    sizes = (shape.rows, shape.outputs, shape.groups, shape.taps, shape.depth, shape.pixels)
    known = shape.element in ELEMENTS and min(sizes) >= 1 and shape.extra >= 0
    return known and any(each.tile == tile for each in conv_shortlist(shape, level))


def _ways(shape: ConvShape, width: int) -> tuple[bool, list[tuple[int, int]]]:
    """Returns whether steps stay within taps, as where few products are filled up, and how many there are by depth."""
    least = 32 if width == 1 else 16
    depths = [
        least << power for power in range(5) if least << power <= (128 if shape.element == "f32" else 256) // width
    ]
    fitting = [k for k in depths if -(-shape.depth // k) * k <= shape.depth * _WASTE and k * width >= 32]
    if shape.taps == 1:
        fitting = [k for k in depths if k < 2 * shape.depth] or [least]
    if fitting:
        return True, [(k, shape.taps * -(-shape.depth // k)) for k in fitting[-2:]]
    products = shape.taps * shape.depth
    flat = [k for k in depths if k * width <= 128 and k < 2 * products] or [least]
    return False, [(k, -(-products // k)) for k in flat[-2:]]


def _predict(shape: ConvShape, tile: ConvTile, card: Card, width: int) -> float | None:
    """Predicted seconds; None where a block does not fit on an SM."""
    as_gemm = GemmTile(tile.m, tile.n, tile.k, tile.warps, tile.stages, tile.splits)
    product = Product(shape.rows, shape.outputs, tile.steps * tile.k, shape.groups, shape.element)
    if tile.stages * (tile.m + tile.n) * tile.k * width + _BARRIERS > card.block_shared:
        return None
    addresses = _ONE_TAP if shape.taps == 1 else _TAPS
    if not tile.whole_taps:
        addresses += _FLAT * tile.m * tile.k // (32 * tile.warps)
    behind = int(_EPILOGUE * shape.extra * tile.m * tile.n) // (32 * tile.warps)
    if registers(as_gemm, shape.element, card) + addresses + behind > _MOST_REGISTERS:
        return None
    results = shape.groups * shape.rows * shape.outputs
    operands = shape.groups * shape.depth * (shape.rows * shape.pixels + shape.outputs * shape.taps)
    work = product_work(product, as_gemm, card, operands * width)
    staged = work.staged
    if not tile.whole_taps:
        vector = math.gcd(shape.depth, 16 // width)
        staged += tile.steps_each * tile.m * tile.k * (_INSTRUCTION // vector + _COORDINATES)
    work = msgspec.structs.replace(work, staged=staged)
    seconds = estimate(card, work).total
    if tile.splits == 1:
        return seconds
    return seconds + adding_seconds(results, tile.splits, width, card)
