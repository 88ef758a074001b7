"""What a card is given to run: artifacts with the results that they must give, and products to be timed."""

from __future__ import annotations

from pathlib import Path

import msgspec

LEVELS = ("sm_80", "sm_90", "sm_100")


class Parity(msgspec.Struct, frozen=True):
    """An artifact, and the file with inputs (``in0``, ...) and results: in f64 (``exact``), of ``eager``."""

    name: str
    dtype: str
    artifact: str
    numbers: str


class Timing(msgspec.Struct, frozen=True):
    """An artifact to be timed with inputs of these shapes; predictions by level, in seconds."""

    name: str
    artifact: str
    shapes: list[list[int]]
    dtype: str
    flops: int
    bytes: int
    predicted: dict[str, float]


class Bundle(msgspec.Struct, frozen=True):
    """Everything, and which tree made it."""

    made_by: str
    levels: list[str]
    parity: list[Parity]
    timings: list[Timing]


def read_bundle(folder: Path) -> Bundle:
    """Returns the description in a folder."""
    return msgspec.json.decode((folder / "bundle.json").read_bytes(), type=Bundle)
