"""A cache on disk: results of work by what they were made from.

Vocabulary
    key    sha-256 (hex) of everything that the result depends on, versions of what makes it included.
    entry  one file ``<folder>/<key[:2]>/<key>``: a magic word, the sha-256 of key and result, the result.

An entry is written under a temporary name and renamed: readers and any number of writers see it whole or not at all.
Its checksum is verified at each read, so a cut, altered or renamed entry is dropped and made again, never used. Reading
an entry refreshes its time; when the folder outgrows its limit, the entries unused for longest go first. A cache that
cannot be written slows compilation down and is reported, it does not stop it. Entries of other users are not read, nor
any in a folder that everybody may write to.

Looking at thousands of entries takes longer than compiling a kernel. So a process does it after its first write, and
again once it has written enough to fill the folder, or a sixteenth of the limit, because other processes write too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_MAGIC = b"lk-object-2\n"
_DIGEST_BYTES = 32
_LOOKS_PER_LIMIT = 16

_room: dict[tuple[Path, int], int] = {}
"""For a folder and its limit: how many bytes this process may write before it looks at all entries again."""


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds."""

    folder: Path
    entries: int
    total_bytes: int


def _is_own(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user (or root), and not everybody may write to it."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH


class DiskCache:
    """Results on disk, shared by all processes of a user.

    Attributes:
        name: what is cached, for messages and as the name of the default folder.
        folder: where the entries are.
        limit: bytes that :meth:`trim` keeps at most.
        problem: why the last write failed, None where all is well.
        rejected: damaged entries that were dropped.
    """

    def __init__(self, name: str, folder: Path | None, limit: int) -> None:
        self.name = name
        self.folder = folder if folder is not None else Path(platformdirs.user_cache_dir("lowerkit")) / f"{name}s"
        self.limit = limit
        self.problem: str | None = None
        self.rejected = 0

    def get(self, key: str) -> bytes | None:
        """Returns the result stored under ``key``; None where there is none, or a damaged one (which is dropped)."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                if not _is_own(os.fstat(file.fileno())) or not _is_own(self.folder.stat()):
                    self.rejected += 1  # whoever may write here could have given it a checksum that fits
                    return None
                data = file.read()
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST_BYTES
        payload = data[head:]
        if data[: len(_MAGIC)] != _MAGIC or _digest(key, payload) != data[len(_MAGIC) : head]:
            self.rejected += 1
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Stores ``payload``; an equal key means an equal payload, so it does not matter which of two writers wins."""
        path = self._path(key)
        temporary = path.with_name(f".{key[:16]}.{os.getpid()}.{secrets.token_hex(6)}.tmp")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(_MAGIC + _digest(key, payload) + payload)
                temporary.replace(path)
                _room[self._place] = _room.get(self._place, 0) - len(payload)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError as error:
            self.problem = f"the {self.name} cache {self.folder} cannot be written: {error.strerror or error}"

    def trim_if_due(self) -> None:
        """Trims the folder where what this process wrote since the last time may have filled it."""
        if _room.get(self._place, -1) < 0:
            self.trim()

    def trim(self) -> int:
        """Removes the entries unused for longest until the limit holds; returns how many."""
        found = sorted(self._entries(), key=lambda entry: entry[1].st_mtime_ns, reverse=True)
        total = 0
        kept = 0
        removed = 0
        for path, status in found:
            total += status.st_size
            if total <= self.limit:
                kept = total
            else:
                with suppress(OSError):
                    path.unlink()
                    removed += 1
        _room[self._place] = min(self.limit - kept, self.limit // _LOOKS_PER_LIMIT)
        return removed

    def clear(self) -> int:
        """Removes all entries and leftovers of killed writers; returns how many entries."""
        removed = 0
        for path, _ in list(self._entries()):
            with suppress(OSError):
                path.unlink()
                removed += 1
        for leftover in self.folder.glob("??/.*.tmp"):
            with suppress(OSError):
                leftover.unlink()
        return removed

    def info(self) -> CacheInfo:
        """Returns the number and size of the entries."""
        sizes = [status.st_size for _, status in self._entries()]
        return CacheInfo(self.folder, len(sizes), sum(sizes))

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in sorted(self.folder.glob("??/*")):
            if len(path.name) != 64:
                continue
            with suppress(OSError):
                yield path, path.stat()

    @property
    def _place(self) -> tuple[Path, int]:
        return self.folder, self.limit

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


def _digest(key: str, payload: bytes) -> bytes:
    """The checksum of an entry holds its key too: an entry that got another's name is damaged like any other."""
    return hashlib.sha256(key.encode() + payload).digest()
