"""What a target says of one region alone, layer by layer, when a bisection asks which of its layers is wrong.

Vocabulary
    layer     what lies between two witnesses: a target's way from the region to the code that its device runs is cut
              where the code can be run by itself, and each piece is a layer
    witness   the results at the end of a layer, from the very inputs that the region read in the model

Witnesses stand in the order of the layers. The first that is wrong convicts its own layer: the one before was right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Offence:
    """Something that code must not do, whatever its results are: a place outside of its buffers, a race.

    Attributes:
        message: what it does.
        places: where, from the outermost text to the machine: a line of a kernel and its text, an instruction.
    """

    message: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " at ".join((self.message, *self.places))


@dataclass(frozen=True)
class Witness:
    """What a region gives at the end of one layer.

    Attributes:
        name: what ran: ``Triton's interpreter``.
        layer: what is to blame where this is the first witness that is wrong: ``the kernel``.
        author: who wrote what ran, or what it ran: a family and its kernels.
        results: one array for each result of the region; None where there are none.
        missing: why there are none, in words; empty where there are, or where an offence ended the run.
        offence: what the code must not do and does; such a witness is wrong whatever it gives.
    """

    name: str
    layer: str
    author: str
    results: Sequence[Array] | None = None
    missing: str = ""
    offence: Offence | None = None
