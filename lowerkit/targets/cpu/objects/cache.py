"""The kernel cache: object files by kernel text, CPU level and the versions of everything that turns text into code."""

from __future__ import annotations

from pathlib import Path

from lowerkit.disk_cache import DiskCache

DEFAULT_LIMIT = 1 << 30


class KernelCache(DiskCache):
    """Object files on disk; at most ``limit`` bytes of them are kept."""

    def __init__(self, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__("kernel", folder, limit)
