"""How much memory this process may still take: of the machine, and of the cgroups that it is in (versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns the bytes that can be allocated without swapping or running into a limit, as far as the kernel tells."""
    return max(0, min((_machine(), *_cgroup_rooms())))


def _machine() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _cgroup_rooms() -> Iterator[int]:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            root, limit, usage = _CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif not controllers:
            root, limit, usage = _CGROUPS, "memory.max", "memory.current"
        else:
            continue
        folder = root / path.lstrip("/")
        # Limits of the folders above count too; in a container the path may lie outside of what is mounted.
        for one in (folder, *folder.parents):
            if one.is_relative_to(root):
                with suppress(OSError, ValueError):
                    yield int((one / limit).read_text()) - int((one / usage).read_text()) + _file_cache(one)


def _file_cache(folder: Path) -> int:
    """Returns the bytes of files that the kernel drops when memory is wanted."""
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    return 0
