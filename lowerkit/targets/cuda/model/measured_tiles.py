"""Tiles of products that were measured on a card: the file that ``lowerkit tune`` writes and ``--tiles`` reads.

One JSON file: ``schema`` (``lowerkit.cuda_tiles``), ``version`` 1, ``card`` (the name that the driver gives) and
``entries``. A compilation takes them only when it is told to; a product that is not in the file gets the tile that is
predicted to be the fastest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import msgspec
import platformdirs

from lowerkit.errors import InputError, UsageError
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.model.products import ELEMENTS, GemmTile, Product, rank

SCHEMA = "lowerkit.cuda_tiles"
_MOST_FILE_BYTES = 16 << 20

Tiles = Mapping[tuple[str, Product], GemmTile]
"""Level and product -> tile."""

_TILES: ContextVar[Tiles | None] = ContextVar("tiles", default=None)


class MeasuredTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fastest tile of a product at a level, the seconds that were measured and those that were predicted."""

    level: str
    product: Product
    tile: GemmTile
    seconds: float
    predicted: float


class TileFile(msgspec.Struct, frozen=True):
    """What is known of a card."""

    card: str
    entries: list[MeasuredTile]
    schema: str = SCHEMA
    version: int = 1

    @property
    def tiles(self) -> dict[tuple[str, Product], GemmTile]:
        """The tiles by level and product."""
        return {(each.level, each.product): each.tile for each in self.entries}

    def with_entries(self, entries: Sequence[MeasuredTile]) -> TileFile:
        """Returns the file with entries in the place of older ones of the same products."""
        known = {(each.level, each.product): each for each in (*self.entries, *entries)}
        return TileFile(self.card, list(known.values()))

    def save(self, path: Path) -> None:
        """Writes the file, over an earlier one, whole or not at all.

        Raises:
            UsageError: LK1005, it cannot be written.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UsageError("LK1005", f"{path} cannot be written: {error.strerror}") from error

    @staticmethod
    def load(path: Path) -> TileFile:
        """Reads a file.

        Raises:
            InputError: LK1001, it cannot be read; LK1002, it is no such file, or has a tile that no kernel can have.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_FILE_BYTES + 1)
        except OSError as error:
            hint = "lowerkit tune measures and writes it"
            raise InputError("LK1001", f"{path} cannot be read: {error.strerror}", hint=hint) from error
        try:
            if len(data) > _MOST_FILE_BYTES:
                raise ValueError(f"it has more than {_MOST_FILE_BYTES} bytes")
            read = msgspec.json.decode(data, type=TileFile)
            if (read.schema, read.version) != (SCHEMA, 1):
                raise ValueError(f"it is {read.schema} {read.version}")
            for entry in read.entries:
                _check(entry)
        except (ValueError, RecursionError) as error:
            raise InputError("LK1002", f"{path} is no file of tiles of version 1: {error}") from error
        return read


def _check(entry: MeasuredTile) -> None:
    tile, product = entry.tile, entry.product
    sizes = (tile.m, tile.n, tile.k, tile.warps, tile.split)
    if product.element not in ELEMENTS or min(product.rows, product.columns, product.depth, product.batch) < 1:
        raise ValueError(f"there is no product {product}")
    fits = all(size > 0 and size & (size - 1) == 0 for size in sizes) and min(sizes[:3]) >= 16
    if not fits or not 1 <= tile.warps <= 8 or not 1 <= tile.stages <= 8 or tile.split > product.depth:
        raise ValueError(f"there is no tile {tile}")
    if not rank(product, [tile], card_of(entry.level)):
        raise ValueError(f"{tile} does not fit on a card of {entry.level}")


def default_path(card: str) -> Path:
    """Returns where the tiles of a card lie: in the user's cache folder, by its name."""
    key = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    return Path(platformdirs.user_cache_dir("lowerkit")) / "cuda" / f"tiles-{key}.json"


@contextmanager
def using_tiles(tiles: Tiles) -> Generator[None]:
    """Gives products these tiles, within and in this thread."""
    token = _TILES.set(tiles)
    try:
        yield
    finally:
        _TILES.reset(token)


def measured_tile(product: Product, level: str) -> GemmTile | None:
    """Returns the tile that a product is to have; None where none is known."""
    tiles = _TILES.get()
    return None if tiles is None else tiles.get((level, product))
