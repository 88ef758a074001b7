"""How far two tensors are apart.

Vocabulary
    reference  what is taken as true; float64 where there is one.
    SQNR       signal to quantization noise: 10 log10(sum reference^2 / sum (actual - reference)^2), in decibels.
    ULP        the spacing of the element type at the reference's largest magnitude.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metrics:
    """Distances between ``actual`` and ``reference``; infinities and NaN are compared by position only.

    Attributes:
        max_abs: largest absolute error.
        p999_abs: 99.9th percentile of the absolute error.
        rms: root mean square of the error.
        max_rel: largest error relative to the reference's element, where that is not zero.
        sqnr_db: SQNR; infinite where the tensors are equal, and NaN never.
        cosine: cosine similarity; 1.0 where both are zero.
        special_equal: NaN, +Inf and -Inf stand at the same positions.
    """

    max_abs: float
    p999_abs: float
    rms: float
    max_rel: float
    sqnr_db: float
    cosine: float
    special_equal: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; an infinite SQNR becomes None, as JSON has no infinity."""
        document = asdict(self)
        document["sqnr_db"] = None if math.isinf(self.sqnr_db) else self.sqnr_db
        return document


def compare(actual: Array, reference: Array) -> Metrics:
    """Compares two arrays of one shape in float64."""
    assert actual.shape == reference.shape, f"{actual.shape} against {reference.shape}"
    left = np.asarray(actual).astype(np.float64).ravel()
    right = np.asarray(reference).astype(np.float64).ravel()
    finite = np.isfinite(left) & np.isfinite(right)
    special_equal = _special_equal(left, right)
    left, right = left[finite], right[finite]
    if left.size == 0:
        return Metrics(0.0, 0.0, 0.0, 0.0, math.inf, 1.0, special_equal)
    error = np.abs(left - right)
    nonzero = right != 0
    max_rel = float(np.max(error[nonzero] / np.abs(right[nonzero]))) if nonzero.any() else 0.0
    noise, signal = float(error @ error), float(right @ right)
    norms = math.sqrt(float(left @ left)) * math.sqrt(signal)
    return Metrics(
        max_abs=float(error.max()),
        p999_abs=float(np.quantile(error, 0.999)),
        rms=math.sqrt(noise / error.size),
        max_rel=max_rel,
        sqnr_db=_decibels(signal, noise),
        cosine=float(left @ right) / norms if norms > 0 else float(noise == 0),
        special_equal=special_equal,
    )


def _special_equal(left: Array, right: Array) -> bool:
    same_nan = np.array_equal(np.isnan(left), np.isnan(right))
    return same_nan and all(np.array_equal(left == value, right == value) for value in (np.inf, -np.inf))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
