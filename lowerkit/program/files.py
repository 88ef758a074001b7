"""Reading what a user hands in: plain files only, whole, bounded."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lowerkit.errors import InputError


@dataclass(frozen=True)
class SourceFile:
    """A file that a program's weights lie in, as it was when it was captured."""

    path: Path
    identity: tuple[int, ...]

    @staticmethod
    def of(path: Path) -> SourceFile:
        """Remembers what tells a file from a changed one: device, number, size and time of change."""
        return SourceFile(path, _identity(path))

    def require_unchanged(self) -> None:
        """Raises where the file is not the one that was captured; its weights are mapped, and may be gone.

        Raises:
            InputError: LK1002.
        """
        try:
            unchanged = _identity(self.path) == self.identity
        except OSError:
            unchanged = False
        if not unchanged:
            raise InputError(
                "LK1002",
                f"{self.path} changed while it was compiled",
                hint="compile it again once nothing writes to it",
            )


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_file(path: Path) -> int:
    """Checks that ``path`` is a regular file that can be read and is not empty; returns its size.

    Raises:
        InputError: LK1001, it does not exist, is no regular file or cannot be read; LK1002, it is empty.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        nearby = _similar(path)
        raise InputError(
            "LK1001",
            f"{path} does not exist",
            hint=f"did you mean {nearby}?" if nearby else "check the path and the working directory",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError("LK1001", f"{path!s:.200} cannot be read: {error}", hint="check the path") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError("LK1001", f"{path} is a folder, not a file", hint="name the file inside it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError("LK1001", f"{path} is not a regular file", hint="copy the model to a plain file")
    if status.st_size == 0:
        raise InputError("LK1002", f"{path} is empty", hint="copy or export the file again")
    if not os.access(path, os.R_OK):
        raise InputError("LK1001", f"this user may not read {path}", hint="check its permissions")
    return status.st_size


def read_file(path: Path, limit: int) -> bytes:
    """Returns the whole file.

    Raises:
        InputError: as :func:`check_file`; LK1002, it is larger than ``limit``.
    """
    size = check_file(path)
    if size > limit:
        raise InputError("LK1002", f"{path} has {size} bytes; this format allows {limit}", hint="use external data")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("LK1001", f"{path} cannot be read: {error.strerror}") from error


def read_start(path: Path, count: int) -> bytes:
    """Returns the first ``count`` bytes, or all of a shorter file."""
    try:
        with path.open("rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise InputError("LK1001", f"{path} cannot be read: {error.strerror}") from error


def hash_file(path: Path) -> bytes:
    """Returns the sha-256 of the sha-256 of each 16 MiB of a file that is not empty; threads hash them side by side."""
    piece_bytes = 1 << 24
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        ThreadPoolExecutor(thread_name_prefix="lowerkit-hash") as pool,
    ):

        def digest(begin: int) -> bytes:
            with view[begin : begin + piece_bytes] as piece:
                return hashlib.sha256(piece).digest()

        digests = list(pool.map(digest, range(0, len(view), piece_bytes)))
    return hashlib.sha256(b"".join(digests)).digest()


def _similar(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    close = [name for name in names if name.lower() == path.name.lower() or Path(name).stem == path.stem]
    return str(path.parent / min(close)) if close else None
