"""What a user's ``--allow`` grants beyond rounding: as far as it moves eager itself, measured, and no more.

Vocabulary
    permission  a name that a target ``permits``, such as ``tf32``, and that the user allowed.
    permitted   a run of eager that does what a permission lets a target do (:mod:`references.permitted_runs`), and is
                without a fault otherwise.

Gate A stays as it is. Where a value does not hold it, and only there, its error to float64 may be larger than what
rounding explains by what the permission moves eager by, as many times as rounding may be eager's own. The verdict then
says so. A model without f32 products is granted nothing by tf32, whatever the user allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lowerkit.dialect.reference.factors import TF32_BITS, rounded_factors

Array = np.ndarray[Any, Any]
T = TypeVar("T")

MEASURED: Mapping[str, str] = {
    "tf32": "eager is run with the f32 factors of products, convolutions and attention cut and rounded to 11 bits"
}
"""The permissions that can be measured, and how; nothing is granted for others."""


@dataclass(frozen=True)
class Permitted:
    """How far permissions move one value.

    Attributes:
        names: the permissions.
        rms, largest: distance of permitted runs to eager; of the run that is farthest off.
    """

    names: tuple[str, ...]
    rms: float
    largest: float

    def to_json(self) -> dict[str, Any]:
        """Returns the ``permitted`` of a row of the ``check`` schema."""
        return {"names": list(self.names), "rms": self.rms, "max": self.largest}


def permitted_of(names: Sequence[str], eager: Array, runs: Sequence[Array]) -> Permitted | None:
    """Measures a value; None where no permitted run gave one of its shape, or all gave eager's.

    Args:
        names: the permissions that were allowed.
        eager: eager's value.
        runs: the value in each permitted run.
    """
    base = eager.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        moves = [np.abs(run.astype(np.float64) - base) for run in runs if run.shape == eager.shape]
    finite = [move[np.isfinite(move)] for move in moves]
    rms = max((math.sqrt(float(np.mean(move * move))) for move in finite if move.size), default=0.0)
    largest = max((float(move.max()) for move in finite if move.size), default=0.0)
    return Permitted(tuple(names), rms, largest) if largest > 0 else None


def interpreted_runs(names: Collection[str], run: Callable[[], T]) -> list[T]:
    """Returns what ``run``, which interprets lk ops in numpy, gives in each way that the permissions allow."""
    found: list[T] = []
    if "tf32" in names:
        for rounding in ("down", "nearest"):
            with rounded_factors(TF32_BITS, rounding):
                found.append(run())
    return found


def permitted_results(
    allowed: Collection[str], own: Sequence[Array], run: Callable[[], Sequence[Array]]
) -> list[Permitted | None]:
    """Returns how far what is allowed moves each result of what ``run`` interprets; ``own`` is without it."""
    runs = interpreted_runs(allowed, run)
    return [permitted_of(sorted(allowed), value, [one[place] for one in runs]) for place, value in enumerate(own)]


def statements(allowed: Mapping[str, str]) -> list[str]:
    """Returns for each permission what it is and how errors are judged under it, for the report.

    Args:
        allowed: name and the target's words for it.
    """
    return [
        f"{name} ({words}): " + (_GRANTED.format(MEASURED[name]) if name in MEASURED else _NOTHING)
        for name, words in sorted(allowed.items())
    ]


_GRANTED = (
    "{}; where a value does not hold gate A, its error may exceed what rounding explains by what that moves it, as "
    "many times as rounding may be eager's own"
)
_NOTHING = "gate A does not know what it does, and grants nothing for it"
