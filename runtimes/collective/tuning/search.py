"""Finds the tuning of a machine: one field after the other, each by all_reduce at the sizes that it concerns.

A candidate displaces the built-in value only if it is better by more than noise is: ``_LEAST_GAIN`` in the geometric
mean over the sizes of its median time, measured round by round beside the others. In the end all values found are
measured together beside the built-in ones, over all sizes; they are dropped where they do not gain as a whole, or lose
``_MOST_LOSS`` at any size. How long ranks spin is not asked: operations one after the other cannot tell what it costs a
rank to be found asleep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lowerkit.runtimes.collective.tuning.table import Tuning

_KIB, _MIB = 1 << 10, 1 << 20
_LEAST_GAIN = 0.03
_MOST_LOSS = 0.10
_NEVER = 1 << 40
ALL_SIZES = (16, _KIB, 6 * _KIB, 24 * _KIB, 48 * _KIB, 256 * _KIB, _MIB, 2 * _MIB, 6 * _MIB, 16 * _MIB)

# (candidates, local ranks, sizes in bytes) -> for each candidate the median seconds of an all_reduce by size.
Measure = Callable[[Sequence[Tuning], int, Sequence[int]], Sequence[Mapping[int, float]]]


@dataclass(frozen=True)
class Sweep:
    """The values tried for one field, and the sizes that they are judged by."""

    field: str
    values: tuple[int, ...]
    sizes: tuple[int, ...]


SWEEPS = (
    Sweep("one_shot_limit", (4 * _KIB, 8 * _KIB, 32 * _KIB, 64 * _KIB), (6 * _KIB, 12 * _KIB, 24 * _KIB, 48 * _KIB)),
    Sweep("tile_bytes", (64 * _KIB, 128 * _KIB, 512 * _KIB, _MIB), (256 * _KIB, _MIB, 4 * _MIB)),
    Sweep("streaming_limit", (_MIB, 4 * _MIB, 32 * _MIB, _NEVER), (2 * _MIB, 6 * _MIB, 16 * _MIB)),
)


@dataclass(frozen=True)
class Trial:
    """How one value did.

    Attributes:
        field: of :class:`Tuning`, or ``all``: the last comparison, of all fields together.
        value: 0: the built-in one; of ``all`` 1: the values found.
        ratio: its time over that of the built-in value, geometric mean over the sizes.
        medians: seconds by size.
        chosen: whether it was taken.
    """

    field: str
    value: int
    ratio: float
    medians: dict[int, float]
    chosen: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; sizes as text."""
        medians = {str(size): seconds for size, seconds in self.medians.items()}
        return {
            "field": self.field, "value": self.value, "ratio": self.ratio, "median_seconds": medians,
            "chosen": self.chosen,
        }  # fmt: skip


def search(measure: Measure, ranks: int) -> tuple[Tuning, list[Trial]]:
    """Returns the tuning for a number of local ranks, and all that was tried.

    Args:
        measure: times the candidates, interleaved.
        ranks: local ranks, at least 2.
    """
    best, trials = Tuning(), list[Trial]()
    for sweep in SWEEPS:
        values = (0, *sweep.values)
        candidates = [msgspec.structs.replace(best, **{sweep.field: value}) for value in values]
        medians = measure(candidates, ranks, sweep.sizes)
        ratios = [_ratio(one, medians[0], sweep.sizes) for one in medians]
        winner = min(range(len(values)), key=lambda index: ratios[index])
        if ratios[winner] > 1.0 - _LEAST_GAIN:
            winner = 0
        best = candidates[winner]
        for index, value in enumerate(values):
            trials.append(Trial(sweep.field, value, ratios[index], dict(medians[index]), index == winner))
    if best != Tuning():
        standard, found = measure([Tuning(), best], ranks, ALL_SIZES)
        ratio = _ratio(found, standard, ALL_SIZES)
        kept = ratio < 1.0 and all(found[size] <= (1.0 + _MOST_LOSS) * standard[size] for size in ALL_SIZES)
        trials.append(Trial("all", 0, 1.0, dict(standard), not kept))
        trials.append(Trial("all", 1, ratio, dict(found), kept))
        if not kept:
            best = Tuning()
    return best, trials


def chosen_seconds(trials: Sequence[Trial]) -> dict[int, float]:
    """Returns the median seconds by size of the values that were taken, of the last comparison for each size."""
    found: dict[int, float] = {}
    for trial in trials:
        found.update(trial.medians if trial.chosen else {})
    return found


def _ratio(medians: Mapping[int, float], standard: Mapping[int, float], sizes: Sequence[int]) -> float:
    return math.exp(sum(math.log(medians[size] / standard[size]) for size in sizes) / len(sizes))
