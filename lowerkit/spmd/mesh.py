"""How a user names a mesh of ranks: ``tp=2``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowerkit.errors import UsageError
from lowerkit.runtimes.mesh.structs import MeshAxis

_AXIS = re.compile(r"([a-z][a-z0-9_-]{0,62})=([0-9]{1,6})")
_MOST_RANKS = 1024


@dataclass(frozen=True)
class Mesh:
    """The ranks that run a program together. One axis so far."""

    axis: MeshAxis

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Reads ``AXIS=RANKS``.

        Raises:
            UsageError: LK1011, the text is none, or has several axes.
        """
        parts = [part.strip() for part in text.split(",")]
        if len(parts) > 1:
            raise UsageError(
                "LK1011",
                f"the mesh {text!r} has {len(parts)} axes; a program is split along one",
                hint=f"write one of them, as in --mesh {parts[0]}",
            )
        match = _AXIS.fullmatch(parts[0])
        if match is None or not 1 <= int(match[2]) <= _MOST_RANKS:
            raise UsageError(
                "LK1011",
                f"the mesh {text!r} cannot be read",
                hint=f"write the name of an axis and its ranks, 1 to {_MOST_RANKS}, as in --mesh tp=2",
            )
        return cls(MeshAxis(match[1], int(match[2])))

    def __str__(self) -> str:
        return f"{self.axis.name}={self.axis.size}"
