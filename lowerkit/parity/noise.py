"""How much rounding a computation brings by itself, measured: the budget of "explained by rounding".

Vocabulary
    run      eager, or a perturbed run of it (:mod:`lowerkit.parity.references.perturbations`): each is as right as the
             other.
    own      the rms of the runs' errors to float64: eager's own error, over all runs instead of one.
    moved    the rms distance of the perturbed runs to eager: eager's sensitivity.
    freedom  how many independent errors a value has. In a deep network few: an early error moves all that follows.

**The statistic.** Errors of right computations have mean squares that scatter like a chi-square of ``freedom`` degrees
around one mean. Ours, over theirs from ``runs`` runs, is then an F ratio with ``freedom`` and ``runs * freedom``
degrees. :attr:`Noise.chance` is the root of its quantile at one in ten thousand: 1.0x for a tensor of many
independent values, 2.9 for four, 6.9 for one. ``freedom`` is measured too, from the scatter of the mean squares of the
runs of one kind (``2 / cv^2``, at least one and at most the number of elements): that is why four values are enough,
and why a thousand that move together do not pass for a thousand.

**The limit.** Our rms error may be ``allowance * min(own, 4 * moved)``. The allowance is two: twice eager's own error;
for few values it is half again what chance does, as another order of work may be that much noisier. Eager's own error
counts only as far as perturbing eager accounts for it: an error that rounding does not move (a float64 run that
computes something else, an approximation that is systematically off) explains nothing. The same holds for the largest
error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_DEVIATIONS = 3.719
"""Of a standard normal at one in ten thousand."""
_OURS = 2.0
"""How many times eager's own error ours may be where there are values enough for chance to play no part."""
_NOISIER = 1.5
"""How many times noisier than eager another order of work may be where there are few values."""
_ACCOUNTED = 4.0
"""How far eager's own error may be above what perturbing it shows: rounding errors of one sign add up."""


@dataclass(frozen=True)
class Noise:
    """The rounding noise of one value.

    Attributes:
        own, own_max: rms and largest error to float64, over eager and all perturbed runs.
        moved, moved_max: rms and largest distance of the perturbed runs to eager.
        freedom: independent errors in the value.
        runs: eager and perturbed runs.
        signal: rms of the value in float64.
    """

    own: float
    own_max: float
    moved: float
    moved_max: float
    freedom: float
    runs: int
    signal: float

    @property
    def chance(self) -> float:
        """How far above the mean an equally good computation's rms error may lie by chance, as a factor."""
        return math.sqrt(_ratio_quantile(self.freedom, self.freedom * self.runs))

    @property
    def allowance(self) -> float:
        """How many times eager's own error ours may be."""
        return max(_OURS, _NOISIER * self.chance)

    @property
    def largest_rms(self) -> float:
        """The rms error that rounding explains."""
        return self.allowance * min(self.own, _ACCOUNTED * self.moved)

    @property
    def largest(self) -> float:
        """The largest error that rounding explains."""
        return self.allowance * min(self.own_max, _ACCOUNTED * self.moved_max)

    @property
    def own_db(self) -> float:
        """The decibels of eager's own error."""
        return decibels(self.signal, self.own)

    @property
    def moved_db(self) -> float:
        """The decibels of eager's sensitivity."""
        return decibels(self.signal, self.moved)

    def to_json(self) -> dict[str, Any]:
        """Returns the ``sensitivity`` of a row of the ``check`` schema."""
        return {
            "runs": self.runs,
            "own_rms": self.own,
            "moved_rms": self.moved,
            "freedom": self.freedom,
            "allowed_rms": self.largest_rms,
            "allowed_max": self.largest,
        }


def decibels(signal: float, error: float) -> float:
    """Returns ``20 log10(signal / error)``; infinite where there is no error."""
    if error == 0:
        return math.inf
    return 20 * math.log10(signal / error) if signal > 0 else -math.inf


def noise_of(eager: Array, perturbed: Sequence[Array], float64: Array, kinds: int = 2) -> Noise | None:
    """Measures the noise of a value; None where fewer than four perturbed runs gave one of its shape.

    Args:
        eager: eager's value. float64: the same without rounding.
        perturbed: the value in each perturbed run.
        kinds: kinds of perturbed runs, which take turns: they do not err alike, so each is a population of its own.
    """
    usable = [run for run in perturbed if run.shape == eager.shape]
    if len(usable) < 4 or float64.shape != eager.shape:
        return None
    base, exact = eager.astype(np.float64), float64.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = [np.abs(run.astype(np.float64) - exact) for run in (eager, *usable)]
        moves = [np.abs(run.astype(np.float64) - base) for run in usable]
    squares = [_mean_square(error) for error in errors]
    mean = float(np.mean(squares))
    scatter = float(np.mean([_scatter(squares[1 + kind :: kinds]) for kind in range(kinds)]))
    count = max(eager.size, 1)
    return Noise(
        own=math.sqrt(mean),
        own_max=max(_largest(error) for error in errors),
        moved=math.sqrt(float(np.mean([_mean_square(move) for move in moves]))),
        moved_max=max(_largest(move) for move in moves),
        freedom=float(np.clip(2 / scatter, 1.0, count)) if scatter > 0 else float(count),
        runs=len(errors),
        signal=math.sqrt(_mean_square(exact)),
    )


def _scatter(squares: Sequence[float]) -> float:
    """Returns the squared coefficient of variation."""
    mean = float(np.mean(squares)) if squares else 0.0
    return float(np.var(squares, ddof=1)) / mean**2 if mean > 0 and len(squares) > 1 else 0.0


def _mean_square(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.mean(finite * finite)) if finite.size else 0.0


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def _ratio_quantile(first: float, second: float) -> float:
    """Returns the quantile of an F ratio at one in ten thousand, by Paulson's normal approximation of its cube root."""
    a, b = 2 / (9 * first), 2 / (9 * second)
    square = _DEVIATIONS**2
    denominator = (1 - b) ** 2 - square * b
    if denominator <= 0:
        return math.inf
    root = (
        (1 - a) * (1 - b) + _DEVIATIONS * math.sqrt((1 - b) ** 2 * a + (1 - a) ** 2 * b - square * a * b)
    ) / denominator
    return root**3
