"""GridSample in any number of dims."""

from __future__ import annotations

import math

from lowerkit.capture.onnx.rewrites.interpolation import Sampling, sample
from lowerkit.capture.onnx.rewrites.rewriter import Rewriter

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def grid_sample(b: Rewriter) -> None:
    """Writes a GridSample: coordinates in [-1, 1] become elements, then the image is read there."""
    shape, grid = b.shape(b.input(0)), b.shape(b.input(1))
    mode = str(b.attribute("mode", "linear"))
    align_corners = bool(b.attribute("align_corners", 0))
    sampling = Sampling(_MODES.get(mode, mode), b.attribute("padding_mode", "zeros"), align_corners)
    count = math.prod(grid[1:-1])
    places: list[str] = []
    for index, extent in enumerate(shape[2:]):
        # The last coordinate of the grid belongs to the first of the image's dims.
        place = b.gather(b.input(1), grid[-1] - 1 - index, len(grid) - 1)
        place = b.op("Add", b.reshape(place, (grid[0], count)), b.scalar(1.0, b.input(0)))
        if align_corners:
            place = b.op("Mul", place, b.scalar((extent - 1) / 2, b.input(0)))
        else:
            scaled = b.op("Mul", place, b.scalar(extent, b.input(0)))
            place = b.op("Mul", b.op("Sub", scaled, b.scalar(1.0, b.input(0))), b.scalar(0.5, b.input(0)))
        places.append(place)
    b.give(b.reshape(sample(b, b.input(0), places, count, sampling), (*shape[:2], *grid[1:-1])))
