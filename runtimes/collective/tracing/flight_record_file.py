"""Reads flight records, as ``flight_recorder.py`` writes them, and checks every field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lowerkit.errors import InputError
from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS, Operation
from lowerkit.runtimes.collective.failures import Status

_MOST_BYTES = 64 << 20
_MOST_RANKS = 1 << 16  # a list of ranks without a record has as many entries
_KNOWN = {
    "operation": {operation.name.lower() for operation in Operation},
    "dtype": {*DTYPES, None},
    "reduction": {*REDUCTIONS, None},
    "status": {status.name.lower() for status in Status},
}

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_RANKS)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one rank; ``flight_recorder.py`` says what each field means."""

    sequence: Count
    operation: str
    dtype: str | None
    reduction: str | None
    root: Rank | None
    count: Count
    tag: Count
    shape: Annotated[list[Count], msgspec.Meta(max_length=8)]
    started: Count
    finished: Count
    waited: Count
    waited_for: Rank | None
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
    rank: Rank
    size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_RANKS)]
    host: str
    process: Count
    written: Count
    aborted: str | None
    dead: list[Rank]
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
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise InputError(
            "LK1002",
            f"{path} is no flight record of version 1: {error}",
            hint="write_flight_record() and the option record_folder write them",
        ) from error


def _checked(record: FlightRecord) -> FlightRecord:
    ranks = [record.rank, *record.dead, *(one.waited_for for one in record.records if one.waited_for is not None)]
    if any(not 0 <= rank < record.size for rank in ranks):
        raise ValueError(f"a rank is not in 0 to {record.size - 1}")
    for entry in record.records:
        for name, known in _KNOWN.items():
            if getattr(entry, name) not in known:
                raise ValueError(f"there is no {name} {_printable(getattr(entry, name))}")
    aborted = None if record.aborted is None else _printable(record.aborted)
    return msgspec.structs.replace(
        record, group=_printable(record.group), host=_printable(record.host), aborted=aborted
    )


def _printable(text: str) -> str:
    """Returns a text that does nothing to a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
