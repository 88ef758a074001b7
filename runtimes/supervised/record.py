"""Which call into a package of others this process is in, in memory that its supervisor shares.

A package may end the process or never return; nothing in the process can say so then. The supervisor, a parent process,
reads here whose call it was, and since when.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["target", "device"]

_SIZE = 1024
_HEADER = struct.Struct("<qH")  # start in nanoseconds of the monotonic clock, 0 where no call goes on; bytes of text


@dataclass(frozen=True)
class ForeignCall:
    """A call of ``method`` of the target or device ``name`` that started at ``start`` (seconds, monotonic clock)."""

    kind: str
    name: str
    method: str
    start: float


class Record:
    """A page that a process and those that it forks share."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)

    def read(self) -> ForeignCall | None:
        """Returns the call that goes on; None where there is none."""
        start, size = _HEADER.unpack_from(self._page)
        if not start:
            return None
        text = self._page[_HEADER.size : _HEADER.size + size].decode(errors="replace")
        kind, _, rest = text.partition("\0")
        name, _, method = rest.partition("\0")
        return ForeignCall(kind, name, method, start / 1e9)

    def raw(self) -> bytes:
        """Returns the bytes of the page's used part, for :meth:`write_raw`."""
        _, size = _HEADER.unpack_from(self._page)
        return self._page[: _HEADER.size + size]

    def write_raw(self, data: bytes) -> None:
        """Puts back what :meth:`raw` returned."""
        self._page[: len(data)] = data

    def write(self, kind: Kind, name: str, method: str) -> None:
        """Notes a call that starts now."""
        text = f"{kind}\0{name}\0{method}".encode()[: _SIZE - _HEADER.size]
        self._page[: _HEADER.size + len(text)] = _HEADER.pack(time.monotonic_ns(), len(text)) + text


_record: Record | None = None


def keep_record(record: Record) -> None:
    """Lets :func:`foreign_call` of this process write into ``record``."""
    global _record  # noqa: PLW0603
    _record = record


@contextmanager
def foreign_call(kind: Kind, name: str, method: str) -> Generator[None]:
    """Notes the call of ``method`` of a target or device while the block runs; without a supervisor, nothing."""
    if _record is None:
        yield
        return
    outer = _record.raw()
    _record.write(kind, name, method)
    try:
        yield
    finally:
        _record.write_raw(outer)
