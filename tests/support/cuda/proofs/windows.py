"""Convolutions and pools, whose batch and images are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect import AvgPoolOp, ConvOp, ConvTransposeOp, IntegerConvOp, MaxPoolOp, ResizeOp
from lowerkit.targets.region_view import RegionView
from tests.support.cuda.proofs.case import Array, Case
from tests.support.cuda.proofs.products import integers
from tests.support.region_kernels import random
from tests.support.targets.cuda_windows import with_weights

Shape = Sequence[int | None]


def _conv(
    name: str, shape: Shape, taps: Sequence[int], element: str, images: Sequence[tuple[int, ...]], **options: Any
) -> Case:
    """A convolution; ``images`` are what the open extents of ``shape`` are in each run."""
    options = {"channels_last": True} | options
    family = "depthwise" if options.get("groups", 1) == taps[0] else "conv"
    op = IntegerConvOp if element == "i8" else ConvOp

    def view() -> RegionView:
        return with_weights([(shape, element), (taps, element)], lambda x, w: op.build(x, w, **options), [1])

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, image in enumerate(images):
            extents = iter(image)
            size = [next(extents) if each is None else each for each in shape]
            yield integers(size, element, seed), integers(taps, element, seed + 100)

    not_run = (
        {"ld.global.b16": "K is 147: rows of the filter's last tile behind it are not there"} if "stem" in name else {}
    )
    return Case(family, f"{element}, {name}", view, sweep, cancels=0.1, not_run=not_run)


def _transposed(
    name: str, shape: Shape, taps: Sequence[int], element: str, images: Sequence[tuple[int, ...]], **options: Any
) -> Case:
    """A transposed convolution; see :func:`_conv`."""
    options = {"channels_last": True} | options
    family = "depthwise_transpose" if options.get("groups", 1) == taps[0] else "conv_transpose"

    def view() -> RegionView:
        operands = [(shape, element), (taps, element)]
        return with_weights(operands, lambda x, w: ConvTransposeOp.build(x, w, **options), [1])

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, image in enumerate(images):
            extents = iter(image)
            size = [next(extents) if each is None else each for each in shape]
            yield integers(size, element, seed), integers(taps, element, seed + 100)

    return Case(family, f"{element}, {name}", view, sweep, cancels=0.1)


def _pool(
    name: str, shape: Shape, element: str, images: Sequence[tuple[int, ...]], largest: bool, **options: Any
) -> Case:
    options = {"channels_last": True} | options
    build = MaxPoolOp.build if largest else AvgPoolOp.build

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, image in enumerate(images):
            extents = iter(image)
            size = [next(extents) if each is None else each for each in shape]
            x = random(size, element, seed)
            yield [(np.abs(x) + 9).astype(x.dtype) * np.asarray(-1 if seed % 2 else 1, x.dtype)]

    return Case(
        "pool", f"{element}, {name}", lambda: with_weights([(shape, element)], lambda x: build(x, **options), []), sweep
    )


def _resize(name: str, shape: Shape, size: Sequence[int], element: str, mode: str, **options: Any) -> Case:
    options = {"channels_last": True, "mode": mode, "size": size} | options

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, image in enumerate(IMAGES):
            extents = iter(image)
            yield [random([next(extents) if each is None else each for each in shape], element, seed)]

    return Case(
        "resize",
        f"{element}, {name}",
        lambda: with_weights([(shape, element)], lambda x: ResizeOp.build(x, **options), []),
        sweep,
        cancels=16.0,
    )


IMAGES = [(2, 7, 6), (1, 1, 1), (1, 3, 9), (3, 8, 8), (1, 16, 5)]
PIXELS = [(7,), (1,), (33,), (2,), (5,)]
CASES = [
    _conv("3 x 3 within taps", (None, 5, 4, 64), (24, 64, 3, 3), "bf16", PIXELS, padding=1),
    _conv("3 x 3, open images", (None, None, None, 40), (20, 40, 3, 3), "bf16", IMAGES, padding=1),
    _conv("1 x 1", (None, 5, 7, 40), (20, 40, 1, 1), "bf16", PIXELS),
    _conv("1 x 1, f32", (None, 5, 7, 40), (33, 40, 1, 1), "f32", PIXELS),
    _conv("stem of 7 x 7, three channels", (None, None, None, 3), (24, 3, 7, 7), "bf16", IMAGES, padding=3, strides=2),
    _conv("3 x 3 in two groups", (None, 6, 5, 48), (32, 24, 3, 3), "bf16", PIXELS, padding=1, groups=2),
    _conv("3 x 3", (None, 5, 6, 40), (24, 40, 3, 3), "i8", PIXELS, padding=1),
    _conv("K in parts", (1, None, None, 512), (16, 512, 3, 3), "bf16", [(3, 3), (1, 1), (4, 5)], padding=1),
    _conv("3 x 3", (None, None, None, 72), (72, 1, 3, 3), "bf16", IMAGES, padding=1, groups=72),
    _conv("3 x 3, strides of 2", (None, None, None, 20), (20, 1, 3, 3), "f32", IMAGES, padding=1, strides=2, groups=20),
    _transposed("phases apart", (None, 5, 4, 40), (40, 24, 2, 2), "bf16", PIXELS, strides=2),
    _transposed(
        "phases of no tap, of one and of two", (None, None, None, 24), (24, 20, 1, 3), "f32", IMAGES, strides=2
    ),
    _transposed(
        "in two groups", (None, None, None, 48), (48, 24, 4, 4), "bf16", IMAGES, padding=1, strides=2, groups=2
    ),
    _transposed("4 x 4", (None, None, None, 24), (24, 1, 4, 4), "bf16", IMAGES, padding=1, strides=2, groups=24),
    _pool("largest", (None, None, None, 24), "bf16", IMAGES, True, kernel=3, strides=2, padding=1),
    _pool(
        "mean, padding does not count", (None, None, None, 20), "f32", IMAGES, False,
        kernel=3, strides=2, padding=1, count_include_pad=False,
    ),
    _resize("linear", (None, None, None, 24), (9, 7), "bf16", "linear"),
    _resize("cubic, corners", (None, None, None, 20), (6, 8), "f32", "cubic", coordinates="align_corners"),
    _resize("nearest, channels second", (None, 5, None, None), (6, 21), "i8", "nearest", channels_last=False),
    _pool("mean of an image", (None, 7, 7, 40), "bf16", PIXELS, False, kernel=7),
]  # fmt: skip
