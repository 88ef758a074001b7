"""Tiles that were measured on a card: the file that ``lowerkit tune`` writes and ``--tiles`` reads.

One JSON file: ``schema`` (``lowerkit.cuda_tiles``), ``version`` 2, ``card`` (the name that the driver gives) and
``entries``. A compilation takes them only when it is told to; what is not in the file gets the tile that is predicted
to be the fastest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import overload

import msgspec
import platformdirs

from lowerkit.errors import InputError, UsageError
from lowerkit.targets.cuda.model.attentions import AttentionShape, AttentionTile
from lowerkit.targets.cuda.model.convolutions import ConvShape, ConvTile
from lowerkit.targets.cuda.model.products import GemmTile, Product
from lowerkit.targets.cuda.model.shortlists import Asked, Tile, fits

SCHEMA = "lowerkit.cuda_tiles"
VERSION = 2
_MOST_FILE_BYTES = 16 << 20

Tiles = Mapping[tuple[str, Asked], Tile]
"""Level and what is asked -> tile."""

_TILES: ContextVar[Tiles | None] = ContextVar("tiles", default=None)


class MeasuredTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fastest tile at a level, the seconds that were measured and those that were predicted, 0 for none."""

    level: str
    asked: Asked
    tile: Tile
    seconds: float
    predicted: float


class _Head(msgspec.Struct):
    """Of a file of any version."""

    schema: str
    version: int


class TileFile(msgspec.Struct, frozen=True):
    """What is known of a card."""

    card: str
    entries: list[MeasuredTile]
    schema: str = SCHEMA
    version: int = VERSION

    @property
    def tiles(self) -> dict[tuple[str, Asked], Tile]:
        """The tiles by level and what they are for."""
        return {(each.level, each.asked): each.tile for each in self.entries}

    def with_entries(self, entries: Sequence[MeasuredTile]) -> TileFile:
        """Returns the file with entries in the place of older ones for the same."""
        known = {(each.level, each.asked): each for each in (*self.entries, *entries)}
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
            head = msgspec.json.decode(data, type=_Head)
            if (head.schema, head.version) != (SCHEMA, VERSION):
                raise ValueError(f"it is {head.schema} {head.version}; lowerkit tune measures again")
            read = msgspec.json.decode(data, type=TileFile)
            for entry in read.entries:
                if not fits(entry.asked, entry.tile, entry.level):
                    raise ValueError(f"there is no kernel with {entry.tile} for {entry.asked} at {entry.level}")
        except (ValueError, RecursionError) as error:
            raise InputError("LK1002", f"{path} is no file of tiles of version {VERSION}: {error}") from error
        return read


def default_path(card: str) -> Path:
    """Returns where the tiles of a card lie: in the user's cache folder, by its name."""
    key = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    return Path(platformdirs.user_cache_dir("lowerkit")) / "cuda" / f"tiles-{key}.json"


@contextmanager
def using_tiles(tiles: Tiles) -> Generator[None]:
    """Takes these tiles, within and in this thread."""
    token = _TILES.set(tiles)
    try:
        yield
    finally:
        _TILES.reset(token)


@overload
def measured_tile(asked: Product, level: str) -> GemmTile | None: ...
@overload
def measured_tile(asked: ConvShape, level: str) -> ConvTile | None: ...
@overload
def measured_tile(asked: AttentionShape, level: str) -> AttentionTile | None: ...
def measured_tile(asked: Asked, level: str) -> Tile | None:
    """Returns the tile that is to be taken; None where none is known."""
    tiles = _TILES.get()
    return None if tiles is None else tiles.get((level, asked))


def asked_text(asked: Asked) -> str:
    """Returns what is asked as JSON, for the description of a launch."""
    return msgspec.json.encode(asked).decode()


def asked_of(text: str) -> Asked:
    """Returns what :func:`asked_text` wrote.

    Raises:
        msgspec.ValidationError: it wrote something else.
    """
    return msgspec.json.decode(text, type=Asked)
