"""What tiles are chosen for, and which are worth measuring: products, convolutions and attention alike."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.targets.cuda.model.attentions import (
    AttentionCandidate,
    AttentionShape,
    AttentionTile,
    attention_fits,
    attention_shortlist,
)
from lowerkit.targets.cuda.model.convolutions import ConvCandidate, ConvShape, ConvTile, conv_fits, conv_shortlist
from lowerkit.targets.cuda.model.products import Candidate, GemmTile, Product, product_fits, shortlist

Asked = Product | ConvShape | AttentionShape
"""What a tile is chosen for."""
Tile = GemmTile | ConvTile | AttentionTile
AnyCandidate = Candidate | ConvCandidate | AttentionCandidate


def candidates_of(asked: Asked, level: str) -> Sequence[AnyCandidate]:
    """Returns the tiles that are worth measuring, that which would be taken first."""
    if isinstance(asked, Product):
        return shortlist(asked, level)
    if isinstance(asked, ConvShape):
        return conv_shortlist(asked, level)
    return attention_shortlist(asked, level)


def fits(asked: Asked, tile: Tile, level: str) -> bool:
    """Returns whether there is a kernel for a tile of what is asked: one of a file that anybody may have written."""
    if isinstance(asked, Product):
        return isinstance(tile, GemmTile) and product_fits(asked, tile, level)
    if isinstance(asked, ConvShape):
        return isinstance(tile, ConvTile) and conv_fits(asked, tile, level)
    return isinstance(tile, AttentionTile) and attention_fits(asked, tile, level)


def asked_words(asked: Asked) -> str:
    """Returns what is asked in words, sizes first."""
    if isinstance(asked, Product):
        batch = f", {asked.batch} times" if asked.batch > 1 else ""
        return f"product {asked.rows} x {asked.columns} x {asked.depth} of {asked.element}{batch}"
    if isinstance(asked, ConvShape):
        channels = f"{asked.depth} to {asked.outputs} channels"
        groups = f", {asked.groups} groups" if asked.groups > 1 else ""
        return f"convolution of {asked.element}, {asked.rows} pixels, {asked.taps} taps, {channels}{groups}"
    mask = ", mask" if asked.masked else ""
    sizes = f"{asked.rows} queries, {asked.keys} keys, {asked.features} features"
    return f"attention of {asked.element}, {sizes}, {asked.outer} times{mask}"


def tile_words(tile: Tile) -> str:
    """Returns a tile in words."""
    rest = f"{tile.warps} warps, {tile.stages} stages"
    if isinstance(tile, AttentionTile):
        return f"{tile.rows} x {tile.keys}, {rest}"
    words = [f"{tile.m} x {tile.n} x {tile.k}, {rest}"]
    parts = tile.split if isinstance(tile, GemmTile) else tile.splits
    if parts > 1:
        words.append(f"{parts} parts")
    if isinstance(tile, GemmTile) and tile.tma:
        words.append("TMA")
    if isinstance(tile, GemmTile) and tile.persistent:
        words.append("persistent")
    return ", ".join(words)
