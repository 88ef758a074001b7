"""Mixed precision by sensitivity: the fewest FLOPs in floats with which gate B holds.

Steps
    1. compile the model once with a switch at each product (:mod:`switches`);
    2. run it with each product alone in int8: what that costs at every output and activation;
    3. choose products by the sum of what they cost (:mod:`selection`), run the choice on all samples, and bisect how
       much noise to allow, because sums only estimate.

The choice is made on calibration samples, :data:`MARGIN_DB` inside the gate; the gate itself is judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.quantization.calibration_data import Sample
from lowerkit.quantization.selection import keep_in_floats
from lowerkit.quantization.sensitivity import Reference, noise_of, reference_of, sensitivities
from lowerkit.quantization.sites import Sites
from lowerkit.quantization.switches import SwitchedModel

Array = np.ndarray[Any, Any]

MARGIN_DB = 0.5
"""How far inside the gate a choice must be on the calibration samples: other data varies."""
TRIALS = 6
"""Choices that are run at most."""
_WIDEST = 4.0
"""Bounds of the factor on the gate's limits: 1 / 64 to 4."""
_NARROWEST = 1 / 64


@dataclass(frozen=True)
class Choice:
    """Products to keep in floats.

    Attributes:
        in_floats: places in ``Sites.sites``, ascending.
        alone_db: for each of them, SQNR of the worst output with it alone in int8.
        gained_db: for each of them, SQNR of the worst output with this choice, less that without it in floats.
    """

    in_floats: list[int]
    alone_db: list[float]
    gained_db: list[float]


class MixedPrecision:
    """A search for the products to keep in floats.

    Args:
        model: compiled with switches.
        sites: of the model.
        always: places of products that the user keeps in floats whatever it takes.
        on_progress: called with what runs now.
    """

    def __init__(
        self,
        model: SwitchedModel,
        sites: Sites,
        always: Collection[int] = (),
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self._model = model
        self._count = len(sites.sites)
        self._always = frozenset(always)
        self._on_progress = on_progress
        self._references: list[Reference] = []
        self._noise: Array | None = None
        self._cost = np.array([float(site.flops or site.weight_bytes) for site in sites.sites])

    def add(self, sample: Sample, *, measured: bool) -> None:
        """Adds a sample on which the choice must hold; with ``measured`` each product is run alone on it as well."""
        reference = reference_of(self._model, sample, self._count)
        self._references.append(reference)
        if measured:
            found = sensitivities(self._model, reference, self._count, self._on_progress)
            self._noise = found if self._noise is None else np.maximum(self._noise, found)

    def choose(self) -> Choice:
        """Returns the cheapest choice found that holds on all samples: everything in floats, at worst."""
        assert self._noise is not None, "one sample at least is measured"
        noise, limits = self._noise, self._references[0].limits * 10 ** (-MARGIN_DB / 10)
        free = [place for place in range(self._count) if place not in self._always]

        def chosen(factor: float) -> list[int]:
            kept = keep_in_floats(noise[free], limits * factor, self._cost[free])
            return sorted([*self._always, *(free[row] for row in kept)])

        def holds(in_floats: Collection[int]) -> bool:
            return all(np.all(noise_of(self._model, each, in_floats) <= limits) for each in self._references)

        best = _bisect(chosen, holds, self._cost, self._on_progress)
        in_floats = list(range(self._count)) if best is None else best
        return _measured(self._model, self._references[0], noise, in_floats)


def _bisect(
    chosen: Callable[[float], list[int]],
    holds: Callable[[Collection[int]], bool],
    cost: Array,
    on_progress: Callable[[str], None] | None,
) -> list[int] | None:
    """Returns the cheapest choice that holds among those that are tried; None where none does."""
    low, high = _NARROWEST, _WIDEST
    factor, best = 1.0, None
    tried: dict[tuple[int, ...], bool] = {}
    for trial in range(TRIALS):
        if on_progress is not None:
            on_progress(f"trying a choice of products ({trial + 1} of {TRIALS})")
        choice = chosen(factor)
        key = tuple(choice)
        if key not in tried:
            tried[key] = holds(choice)
        if tried[key]:
            low = factor
            best = choice if best is None or cost[choice].sum() < cost[best].sum() else best
        else:
            high = factor
        factor = float(np.sqrt(low * high))
    return best


def _measured(model: SwitchedModel, reference: Reference, noise: Array, in_floats: list[int]) -> Choice:
    """Adds to a choice what each of its products costs and gains at the worst output."""

    def worst(errors: Array) -> float:
        largest = float(errors[: reference.outputs].max())
        return float(np.inf) if largest == 0 else -10 * float(np.log10(largest))

    together = worst(noise_of(model, reference, in_floats))
    gained = [
        together - worst(noise_of(model, reference, [other for other in in_floats if other != place]))
        for place in in_floats
    ]
    return Choice(in_floats, [worst(noise[place]) for place in in_floats], gained)
