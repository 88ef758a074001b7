"""One compared region of a quantized model, and when it passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lowerkit.parity.gates import GATES

OWNER_LSB, OWNER_SHARE = 1, 1e-3
"""To the owner of the model: at most so many LSB, on at most this share of the elements."""


@dataclass(frozen=True)
class IntegerRow:
    """One result of a quantized region.

    Attributes:
        name, kind, location: as of a row of a report.
        elements: how many there are.
        roundings: how often numbers are rounded to stored integers on the way; each is an op of the owner's with a
            budget of its own.
        exact: the kernel has to give the bits of the interpreter.
        differing, largest: elements that differ from the interpreter, and by how many LSB at most.
        owner_differing, owner_largest: the interpreter against the model's owner; None where it has no such value.
        sqnr_db: of a region that computes floats, against the interpreter; None for stored integers and exact values.
    """

    name: str
    kind: str
    location: str
    elements: int
    exact: bool
    differing: int = 0
    largest: int = 0
    owner_differing: int | None = None
    owner_largest: int | None = None
    sqnr_db: float | None = None
    roundings: int = 1

    @property
    def passed(self) -> bool:
        """Whether the kernel gives its definition's bits, and the definition is within the budget of its owner."""
        if self.sqnr_db is not None:
            return self.sqnr_db >= GATES["f32"].model_sqnr_db
        own = self.differing == 0
        if not self.exact:
            own = _within(self.differing, self.largest, self.elements, self.roundings)
        if self.owner_differing is None or self.owner_largest is None:
            return own
        return own and _within(self.owner_differing, self.owner_largest, self.elements, self.roundings)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.sqnr_db is not None:
            return ("ok: " if self.passed else "FAIL: ") + f"floats, {self.sqnr_db:.1f} dB to the interpreter"
        if self.exact and self.differing:
            return f"FAIL: {self.differing} elements are not the interpreter's, by up to {self.largest} LSB"
        if not self.passed:
            return f"FAIL: more than {OWNER_LSB} LSB on {OWNER_SHARE:.1%}, {self.roundings} times"
        return "ok: exact" if self.exact else "ok: within a tie"

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``check`` schema."""
        return {
            "name": self.name,
            "kind": self.kind,
            "location": self.location,
            "elements": self.elements,
            "roundings": self.roundings,
            "exact": self.exact,
            "passed": self.passed,
            "differing": self.differing,
            "largest_lsb": self.largest,
            "owner_differing": self.owner_differing,
            "owner_largest_lsb": self.owner_largest,
            "sqnr_db": None if self.sqnr_db is None or math.isinf(self.sqnr_db) else self.sqnr_db,
        }


def _within(differing: int, largest: int, elements: int, roundings: int) -> bool:
    return largest <= OWNER_LSB * roundings and differing <= max(1, OWNER_SHARE * roundings * elements)
