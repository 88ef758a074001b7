"""How a kernel uses memory, as far as its text says: what the checks of races are made for."""

from __future__ import annotations

_LARGEST_GRANULE = 16


class MemoryUse:
    """What the instructions of a kernel say of memory.

    Attributes:
        fences: whether it has fences.
    """

    def __init__(self) -> None:
        self.fences = False
        self._granules: dict[str, int] = {}

    def note(self, space: str, width: int) -> None:
        """Takes note of accesses of ``width`` bytes to a space; generic ones are to all spaces."""
        for each in ("global", "shared") if space == "generic" else (space,):
            self._granules[each] = min(width, self._granules.get(each, width))

    def granule(self, space: str) -> int:
        """Returns the bytes of the smallest access to a space, 16 at most."""
        return min(self._granules.get(space, _LARGEST_GRANULE), _LARGEST_GRANULE)
