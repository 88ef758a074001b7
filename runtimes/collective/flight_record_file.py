"""Reads flight records, as ``flight_recorder.py`` writes them, and checks every field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from lowerkit.errors import InputError

_MOST_BYTES = 64 << 20


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one rank; ``flight_recorder.py`` says what each field means."""

    sequence: int
    operation: str
    dtype: str | None
    reduction: str | None
    root: int | None
    count: int
    tag: int
    shape: list[int]
    started: int
    finished: int
    waited: int
    waited_for: int | None
    status: str

    @property
    def text(self) -> str:
        """The call, as errors write it: ``all_reduce(sum, float32 x 12, shape 3x4)``."""
        parts = [self.reduction] if self.reduction else []
        if self.dtype:
            parts.append(f"{self.dtype} x {self.count}")
        if self.shape:
            parts.append("shape " + "x".join(map(str, self.shape)))
        if self.root is not None:
            parts.append(f"root {self.root}" if self.sequence else f"rank {self.root}")
        return f"{self.operation}({', '.join(parts)})"


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document of one rank of one group."""

    schema: Literal["lowerkit.flight_record"]
    version: Literal[1]
    group: str
    rank: int
    size: int
    host: str
    process: int
    written: int
    aborted: str | None
    dead: list[int]
    records: list[Entry]


def to_flight_record(document: dict[str, Any]) -> FlightRecord:
    """Returns a document that ``flight_record`` made in this process."""
    return _checked(msgspec.convert(document, FlightRecord))


def read_flight_record(path: str | os.PathLike[str]) -> FlightRecord:
    """Reads one file.

    Raises:
        InputError: LK1001, it cannot be read; LK1002, it is no flight record.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError("LK1001", f"{path} cannot be read: {error.strerror}") from error
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return _checked(msgspec.json.decode(data, type=FlightRecord))
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise InputError(
            "LK1002",
            f"{path} is no flight record of version 1: {error}",
            hint="write_flight_record() and the option record_folder write them",
        ) from error


def _checked(record: FlightRecord) -> FlightRecord:
    ranks = [record.rank, *record.dead, *(one.waited_for for one in record.records if one.waited_for is not None)]
    if any(not 0 <= rank < record.size for rank in ranks):
        raise ValueError(f"a rank is not in 0 to {record.size - 1}")
    return record
