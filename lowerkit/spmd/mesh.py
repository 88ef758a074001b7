"""How a user names a mesh of ranks: ``tp=2``, ``dp=2,pp=2,tp=4``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lowerkit.errors import UsageError
from lowerkit.runtimes.mesh.structs import MeshAxis

_AXIS = re.compile(r"([a-z][a-z0-9_-]{0,62})=([0-9]{1,6})")
MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class Mesh:
    """The ranks that run a program together: a rank's place is row-major, the last axis varies fastest."""

    axes: tuple[MeshAxis, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(axis.size for axis in self.axes)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Reads ``AXIS=RANKS[,AXIS=RANKS...]``.

        Raises:
            UsageError: LK1011, the text is none, an axis stands twice, or there are too many ranks.
        """
        matches = [(part.strip(), _AXIS.fullmatch(part.strip())) for part in text.split(",")]
        axes = tuple(MeshAxis(match[1], int(match[2])) for _, match in matches if match is not None)
        wrong = [part for part, match in matches if match is None or not 1 <= int(match[2]) <= MOST_RANKS]
        if wrong:
            where = f": {wrong[0]!r}" if len(matches) > 1 else ""
            raise UsageError(
                "LK1011",
                f"the mesh {text!r} cannot be read{where}",
                hint=f"write axes and their ranks, 1 to {MOST_RANKS}, as in --mesh tp=2 or --mesh dp=2,tp=4",
            )
        names = [axis.name for axis in axes]
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise UsageError("LK1011", f"the mesh {text!r} names the axis {twice[0]!r} twice")
        mesh = cls(axes)
        if mesh.size > MOST_RANKS:
            raise UsageError("LK1011", f"the mesh {text!r} has {mesh.size} ranks, at most {MOST_RANKS} are possible")
        return mesh

    def __str__(self) -> str:
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes)
