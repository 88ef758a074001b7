"""What is compared of a quantized model: regions with the interpreter, ops with the owner; and when they pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.parity.gates import GATES

Array = np.ndarray[Any, Any]

MOST_LSB, MOST_SHARE = 1, 1e-3
"""Where a value is not defined to the bit: at most so many LSB, on at most this share of the elements."""


@dataclass(frozen=True)
class IntegerRow:
    """One result of a region, against the interpreter on what the region was given.

    Attributes:
        name, kind, location: as of a row of a report.
        elements: how many there are.
        exact: the kernel has to give the bits of the interpreter.
        differing, largest: elements that differ, and by how many LSB at most.
        sqnr_db: of a region that computes floats, in place of these; None for stored integers and exact values.
        roundings: how often numbers are rounded to stored integers on the way; each has a budget of its own.
    """

    name: str
    kind: str
    location: str
    elements: int
    exact: bool
    differing: int = 0
    largest: int = 0
    sqnr_db: float | None = None
    roundings: int = 1

    @property
    def passed(self) -> bool:
        """Whether the kernel gives what its definition gives, within the budget where that has more than one value."""
        if self.sqnr_db is not None:
            return self.sqnr_db >= GATES["f32"].model_sqnr_db
        if self.exact:
            return self.differing == 0
        return _within(self.differing, self.largest, self.elements, self.roundings)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.sqnr_db is not None:
            return ("ok: " if self.passed else "FAIL: ") + f"floats, {self.sqnr_db:.1f} dB to the interpreter"
        if self.exact and self.differing:
            return f"FAIL: {self.differing} elements are not the interpreter's, by up to {self.largest} LSB"
        if not self.passed:
            return f"FAIL: more than {MOST_LSB} LSB on {MOST_SHARE:.1%}, {self.roundings} times"
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
            "sqnr_db": None if self.sqnr_db is None or math.isinf(self.sqnr_db) else self.sqnr_db,
        }


@dataclass(frozen=True)
class OwnerRow:
    """One op that rounds to stored integers, interpreted on the owner's values.

    Attributes:
        name, kind, location: as of a row of a report.
        elements: how many there are.
        differing, largest: elements that differ from the owner's, and by how many LSB at most.
    """

    name: str
    kind: str
    location: str
    elements: int
    differing: int
    largest: int

    @property
    def passed(self) -> bool:
        """Whether it is within 1 LSB on 0.1 % of the elements (one element, of few)."""
        return _within(self.differing, self.largest, self.elements, 1)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return "ok" if self.passed else f"FAIL: more than {MOST_LSB} LSB on {MOST_SHARE:.1%} to the owner"

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``check`` schema."""
        return {
            "name": self.name,
            "kind": self.kind,
            "location": self.location,
            "elements": self.elements,
            "passed": self.passed,
            "differing": self.differing,
            "largest_lsb": self.largest,
        }


def _within(differing: int, largest: int, elements: int, roundings: int) -> bool:
    return largest <= MOST_LSB * roundings and differing <= max(1, MOST_SHARE * roundings * elements)


def difference(left: Array, right: Array, unsigned: bool) -> tuple[int, int]:
    """Returns how many elements differ, and by how many LSB at most.

    Floats that came of stored integers lie on a grid; its step is their LSB.
    """
    if left.dtype.kind == "f":
        grid = np.unique(right[np.isfinite(right)].astype(np.float64))
        step = float(np.diff(grid).min(initial=np.inf))
        error = np.abs(left.astype(np.float64) - right.astype(np.float64))
        error = np.where(np.isnan(left) & np.isnan(right), 0, error)
        largest = np.nan_to_num(np.ceil(np.nanmax(error, initial=0) / step - 1e-3), posinf=1 << 30)
        return int(np.count_nonzero(~(error == 0))), int(largest)
    if unsigned:
        left, right = (array.view(f"u{array.dtype.itemsize}") for array in (left, right))
    error = np.abs(left.astype(np.int64) - right.astype(np.int64))
    return int(np.count_nonzero(error)), int(error.max(initial=0))
