"""Files that repeat a failure of lowerkit, in a folder of their own: never silently in the user's.

The name of a file holds the hash of its text: another model, pass or kernel is another file, the same failure again is
the same file. The newest :data:`KEPT` are kept.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import platformdirs

KEPT = 100
"""Files in the default folder at most; each is the IR of one model or kernel, without weights."""


def default_folder() -> Path:
    """The folder of the user's cache that reproducers are written to where no other is asked for."""
    return Path(platformdirs.user_cache_dir("lowerkit")) / "reproducers"


def file_name(stem: str, text: str) -> str:
    """Returns ``lowerkit-<stem>-<12 digits of the hash of the text>.mlir``."""
    return f"lowerkit-{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.mlir"


def write_reproducer(name: str, text: str, folder: Path | None) -> Path:
    """Writes a file of that name, see :func:`file_name`, into ``folder`` (the default one for None); returns its path.

    Raises:
        OSError: it cannot be written.
    """
    target = folder if folder is not None else default_folder()
    target.mkdir(parents=True, exist_ok=True)
    path = target.absolute() / name
    path.write_text(text)
    if folder is None:
        _trim(target)
    return path


def _trim(folder: Path) -> None:
    with suppress(OSError):  # another process may trim too
        files = sorted(folder.glob("lowerkit-*.mlir"), key=lambda path: path.stat().st_mtime)
        for path in files[:-KEPT]:
            path.unlink(missing_ok=True)
