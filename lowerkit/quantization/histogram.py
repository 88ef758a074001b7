"""How often values occur, in bins of one width, over a range that grows with the data."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BINS = 1 << 14
_SMALLEST = -100
"""Binary logarithm of the smallest reach: ranges below are taken for zero when a scale is made."""


class Histogram:
    """Counts of finite values between minus and plus ``reach``, a power of two that doubles when it is too small.

    Doubling joins pairs of bins, so that counts depend neither on the order of the samples nor on the first of them.
    """

    def __init__(self) -> None:
        self.counts: Array = np.zeros(_BINS, np.int64)
        self.low, self.high = np.inf, -np.inf
        self._exponent = _SMALLEST

    def add(self, values: Array) -> None:
        """Counts values; NaN and infinities are left out."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return
        self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        while 2.0**self._exponent < max(-self.low, self.high):
            self._double()
        reach = 2.0**self._exponent
        places = np.minimum(((finite + reach) * (_BINS / 2 / reach)).astype(np.int64), _BINS - 1)
        self.counts += np.bincount(places, minlength=_BINS)

    def occupied(self) -> tuple[Array, Array]:
        """Returns the middles of the bins that hold values, float64, and their counts."""
        places = np.flatnonzero(self.counts)
        reach = 2.0**self._exponent
        middles = (places + 0.5) * (2 * reach / _BINS) - reach
        return np.clip(middles, self.low, self.high), self.counts[places]

    def _double(self) -> None:
        joined = self.counts.reshape(-1, 2).sum(1)
        self.counts = np.zeros(_BINS, np.int64)
        self.counts[_BINS // 4 : 3 * _BINS // 4] = joined
        self._exponent += 1
