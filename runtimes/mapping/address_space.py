"""How much this process may still map: the limit of its address space (``RLIMIT_AS``), which shells call ``ulimit -v``.

The limit counts what is mapped, used or not: code, stacks of threads, files, memory that ranks share.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lowerkit.errors import ResourceError

_NO_SEGMENT = "failed to map segment"
"""What the loader of shared libraries says where there is no room for one."""


@dataclass(frozen=True)
class AddressSpace:
    """Of this process, in bytes: ``limit`` of all that is mapped, of which ``taken`` is mapped now."""

    limit: int
    taken: int

    @staticmethod
    def limited() -> AddressSpace | None:
        """Returns what there is; None where nothing limits it."""
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if limit == resource.RLIM_INFINITY else AddressSpace(limit, mapped_bytes())

    @property
    def free(self) -> int:
        """What may still be mapped."""
        return max(0, self.limit - self.taken)

    def __str__(self) -> str:
        return (
            f"the limit of this process's address space (RLIMIT_AS) is {megabytes(self.limit)}, "
            f"of which {megabytes(self.taken)} are taken"
        )


def mapped_bytes() -> int:
    """Returns how much this process has mapped, as ``RLIMIT_AS`` counts it."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


@contextmanager
def limited_to(limit: int) -> Generator[None]:
    """Limits this process's address space to ``limit`` bytes for a block, what is mapped already included.

    Raises:
        ResourceError: LK7002, that is less than what is mapped, or more than the system allows; or the block ran out
            of memory.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken, most = mapped_bytes(), before[1]
    if limit < taken:
        raise ResourceError(
            "LK7002",
            f"a limit of {megabytes(limit)} is less than the {megabytes(taken)} that this process has mapped by itself",
            hint="add to that what the model needs",
        )
    if most != resource.RLIM_INFINITY and limit > most:
        raise ResourceError(
            "LK7002",
            f"a limit of {megabytes(limit)} is above the {megabytes(most)} that the system allows this process",
            hint="`ulimit -H -v` shows what is allowed",
        )
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    try:
        yield
    except (MemoryError, ImportError) as error:
        resource.setrlimit(resource.RLIMIT_AS, before)  # what is said of it takes memory, too
        if isinstance(error, ImportError) and _NO_SEGMENT not in str(error):
            raise
        raise ResourceError("LK7002", "out of memory", details=[str(AddressSpace(limit, mapped_bytes()))]) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_lines() -> list[str]:
    """Returns what is to be said of the limit where memory ran out: no line where there is none."""
    space = AddressSpace.limited()
    return [] if space is None else [str(space)]


def megabytes(size: int) -> str:
    """Returns a number of bytes for people."""
    return f"{size / 1e6:,.1f} MB"
