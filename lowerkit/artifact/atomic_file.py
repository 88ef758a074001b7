"""Files that appear whole or not at all.

The file is written without a name (Linux ``O_TMPFILE``), so that even SIGKILL leaves nothing behind; when it is
complete and on the disk it gets a temporary name and is renamed over the destination. Where the file system has no
nameless files, a temporary name in the same folder is used from the start and removed on any error.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lowerkit.errors import InputError, LowerkitError, ResourceError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Opens a new file for reading and writing; at the end of the block it takes the place of ``path``.

    If the block raises, ``path`` keeps what it had and no other file is left. A symbolic link is followed.

    Raises:
        ResourceError: LK7001, the disk is full.
        InputError: LK1005, the folder does not exist, is read-only, or ``path`` is not a regular file.
    """
    path = Path(path)
    destination = path.resolve()
    if destination.exists() and not stat.S_ISREG(destination.stat().st_mode):
        raise InputError("LK1005", f"{path} is not a file that could be replaced")
    folder = -1
    try:
        folder = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with _new_file(folder, destination.name) as (file, temporary, named):
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not named:
                _give_name(file.fileno(), folder, temporary)
            try:
                os.rename(temporary, destination.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
    except OSError as error:
        raise _explain(path, error) from error
    finally:
        if folder >= 0:
            os.close(folder)


@contextmanager
def _new_file(folder: int, name: str) -> Generator[tuple[BinaryIO, str, bool]]:
    """Yields the file, its temporary name, and whether it has this name already."""
    temporary = f".{name[:200]}.{secrets.token_hex(6)}.tmp"
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666, dir_fd=folder)
        named = False
    except OSError as error:
        if error.errno not in _NO_NAMELESS_FILES:
            raise
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        named = True
    try:
        with os.fdopen(descriptor, "w+b", buffering=1 << 20) as file:
            try:
                yield file, temporary, named
            except BaseException:
                with suppress(OSError):  # flushing again what did not fit the disk: the first error is the one to show
                    file.close()
                raise
    except BaseException:
        if named:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        raise


def _give_name(descriptor: int, folder: int, name: str) -> None:
    # linkat follows the link in /proc only when it is asked to; Python asks only when a folder is given.
    os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)


def _explain(path: Path, error: OSError) -> LowerkitError:
    reason = error.strerror or str(error)
    if error.errno in _DISK_FULL:
        return ResourceError(
            "LK7001",
            f"{path} cannot be written: {reason}",
            hint="free space on the disk or choose another folder; an earlier file of this name is untouched",
        )
    return InputError("LK1005", f"{path} cannot be written: {reason}")
