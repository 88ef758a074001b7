"""How a range is made of the values that an activation takes over calibration data.

A method is a class with ``observe`` and ``range``, named in :data:`METHODS`: later ones (moving average, entropy) get
a class and a line there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from lowerkit.errors import UsageError
from lowerkit.quantization.histogram import Histogram

Array = np.ndarray[Any, Any]

_KEPT = 1 << 18
"""Values that a percentile keeps of each sample at most, evenly spaced."""
FRACTIONS = tuple(0.93**step for step in range(24))
"""Of the extremes: the bounds that :class:`SquaredError` tries, 1 down to 0.19."""


class CalibrationMethod(ABC):
    """The range of one activation."""

    @abstractmethod
    def observe(self, values: Array) -> None:
        """Takes the values of one sample; NaN and infinities say nothing about a range and are left out."""

    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Returns the smallest and the largest value to represent."""


class MinMax(CalibrationMethod):
    """The smallest and the largest value of all samples: nothing saturates on the calibration data."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf

    def observe(self, values: Array) -> None:
        """See :class:`CalibrationMethod`."""
        finite = values[np.isfinite(values)]
        if finite.size:
            self._low, self._high = min(self._low, float(finite.min())), max(self._high, float(finite.max()))

    def range(self) -> tuple[float, float]:
        """See :class:`CalibrationMethod`."""
        return (self._low, self._high) if self._low <= self._high else (0.0, 0.0)


class Percentile(CalibrationMethod):
    """What all but a few values lie within: outliers saturate, all others get finer steps.

    Args:
        percent: of the values that lie at or above the lower bound, and at or below the upper one; 50 to 100.
    """

    def __init__(self, percent: float = 99.99) -> None:
        if not 50 < percent <= 100:
            raise UsageError("LK1009", f"a percentile of {percent} is not above 50 and at most 100")
        self.percent = percent
        self._samples: list[Array] = []

    def observe(self, values: Array) -> None:
        """See :class:`CalibrationMethod`; of a large sample evenly spaced values are kept."""
        finite = values[np.isfinite(values)].astype(np.float32)
        self._samples.append(finite[:: max(1, -(-finite.size // _KEPT))])

    def range(self) -> tuple[float, float]:
        """See :class:`CalibrationMethod`."""
        values = np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)
        if not values.size:
            return 0.0, 0.0
        low, high = np.percentile(values, [100 - self.percent, self.percent])
        return float(low), float(high)


class SquaredError(CalibrationMethod):
    """The range with the least sum of squared errors, of rounding and of saturation together.

    Both bounds are tried at fractions of the extremes, over a histogram whose bins are finer than the steps.
    """

    def __init__(self) -> None:
        self._histogram = Histogram()

    def observe(self, values: Array) -> None:
        """See :class:`CalibrationMethod`."""
        self._histogram.add(values)

    def range(self) -> tuple[float, float]:
        """See :class:`CalibrationMethod`."""
        values, counts = self._histogram.occupied()
        if not values.size:
            return 0.0, 0.0
        lows, highs = (
            [bound * fraction for fraction in FRACTIONS] if bound else [0.0]
            for bound in (min(self._histogram.low, 0.0), max(self._histogram.high, 0.0))
        )
        return min(
            ((low, high) for low in lows for high in highs), key=lambda bounds: squared_error(values, counts, *bounds)
        )


def squared_error(values: Array, counts: Array, low: float, high: float) -> float:
    """Returns what quantization by a range loses: the sum over ``values`` (float64), each as often as it counts."""
    scale, zero = unsigned_scaling(low, high)
    stored = np.clip(np.rint(values / scale), -zero, 255 - zero)
    error = stored * scale - values
    return float((counts * error) @ error)


METHODS: dict[str, type[CalibrationMethod]] = {"min-max": MinMax, "percentile": Percentile, "mse": SquaredError}
"""Calibration methods by name."""


def make_method(name: str, percent: float) -> CalibrationMethod:
    """Returns a fresh method for one activation.

    Raises:
        UsageError: LK1009, there is no such method, or the percentile is out of its range.
    """
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise UsageError("LK1009", f"there is no calibration method {name!r}", hint=f"the methods are: {known}")
    return Percentile(percent) if name == "percentile" else METHODS[name]()


def unsigned_scaling(low: float, high: float) -> tuple[float, int]:
    """Returns scale (a value of f32) and zero point with which 0 to 255 covers a range.

    The range is widened to hold zero, which then has an exact representation: padding and ReLU depend on it.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255))
    if not np.isfinite(scale) or scale < 2.0**-100:
        return 1.0, 0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))
