"""Where ranks find each other: a small map from names to bytes that all of them reach.

What stands in a store is read by whoever can read the store; a job token that is published there protects against
everybody else only (see ``job_token.py``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


class Store(Protocol):
    """What a rendezvous needs of a store. Keys are text, values bytes; all methods are atomic."""

    def set(self, key: str, value: bytes) -> None:
        """Sets a value, over an earlier one."""
        ...

    def get(self, key: str, timeout: float) -> bytes:
        """Returns a value, waiting up to ``timeout`` seconds until there is one.

        Raises:
            TimeoutError: there is none.
        """
        ...

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets ``desired`` if the value is ``expected`` (``b""``: if there is none); returns the value afterwards."""
        ...

    def delete(self, key: str) -> bool:
        """Deletes a value; tells whether there was one."""
        ...


class MemoryStore:
    """A store for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """See :class:`Store`."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: float) -> bytes:
        """See :class:`Store`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout):
                raise TimeoutError(f"no value of {key!r} within {timeout:.3g} s")
            return self._values[key]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See :class:`Store`."""
        with self._changed:
            if self._values.get(key, b"") == expected:
                self._values[key] = desired
                self._changed.notify_all()
            return self._values.get(key, b"")

    def delete(self, key: str) -> bool:
        """See :class:`Store`."""
        with self._changed:
            return self._values.pop(key, None) is not None

    def keys(self) -> list[str]:
        """Returns the keys that have a value, sorted."""
        with self._changed:
            return sorted(self._values)


class DirectoryStore:
    """A store in a folder that only its owner can enter: for ranks of one machine, or of machines that share files.

    A value is a file, named by the hash of its key, written beside its place and renamed. ``compare_set`` takes a lock
    on the folder, so the file system must have locks (NFS from version 4 on).

    Raises:
        UsageError: LK1010, the folder is not ours or others can enter it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & 0o077:
            raise usage(
                f"{self._folder} has mode {mode:o} and owner {status.st_uid}: others could join",
                hint=f"chmod 700 {self._folder}, or name another folder",
            )

    def set(self, key: str, value: bytes) -> None:
        """See :class:`Store`."""
        with self._locked():
            self._write(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """See :class:`Store`. Asks again after 0.5 to 20 ms."""
        deadline = Deadline(timeout)
        pause = _FIRST_PAUSE
        while (value := self._read(key)) is None:
            if deadline.expired():
                raise TimeoutError(f"no value of {key!r} within {timeout:.3g} s")
            time.sleep(min(pause, deadline.remaining()))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See :class:`Store`."""
        with self._locked():
            present = self._read(key)
            if (present or b"") != expected:
                return present or b""
            self._write(key, desired)
            return desired

    def delete(self, key: str) -> bool:
        """See :class:`Store`."""
        with suppress(FileNotFoundError), self._locked():  # who made the folder may have ended, and removed it
            self._path(key).unlink()
            return True
        return False

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, key: str, value: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
            Path(temporary).replace(self._path(key))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Generator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
