"""Which tile a convolution gets: one that was measured, else the one that is predicted to be the fastest."""

from __future__ import annotations

from lowerkit.targets.cuda.families.windows.conv_problem import Conv
from lowerkit.targets.cuda.model.convolutions import ConvShape, ConvTile, conv_shortlist
from lowerkit.targets.cuda.model.measured_tiles import measured_tile

_OPEN = 4096


def asked_convolution(conv: Conv, extra: int) -> ConvShape:
    """Returns what a tile is chosen for: the epilogue reads ``extra`` whole tiles; open extents count as many."""
    slide, rows, groups = conv.slide, conv.rows, conv.groups
    pixels = 1
    for window in slide.windows:
        pixels *= min(window.kernel, window.stride)
    return ConvShape(
        slide.x.element,
        rows if isinstance(rows, int) else _OPEN,
        slide.channels // groups,
        groups,
        slide.taps,
        conv.depth,
        pixels,
        isinstance(rows, int),
        extra,
    )


def choose_conv_tile(shape: ConvShape, level: str) -> ConvTile:
    """Returns the tile of a convolution."""
    return measured_tile(shape, level) or conv_shortlist(shape, level)[0].tile


__all__ = ["ConvTile", "asked_convolution", "choose_conv_tile"]
