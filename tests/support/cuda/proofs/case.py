"""A region that stands for a family's kernels, and the operands that its kernels are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]

LEVELS = ("sm_80", "sm_90")

LIMITS: Mapping[str, float] = {"f64": 1e-14, "f32": 1e-6, "f16": 2.0**-10, "bf16": 2.0**-7}
"""How far a number may be off for its size: rounded once, f32 and f64 as far as sums in another order are."""


@dataclass(frozen=True)
class Case:
    """See the module.

    Attributes:
        family: which must take the region.
        name: of the case; with the family it says which one it is.
        view: makes the region.
        sweep: makes the operands of each run; open extents change from one to the next.
        plan: plans it with a tile of the case's choice; None: as the family chooses.
        cancels: how large a number may be that cancels out, to the largest of a result: what that costs in f32 is let
            go beside the limit of the type.
        not_run: reasons why instructions need not run, by a part of their text.
        wanted: what the region must give, where the interpreter says it less exactly; None: the interpreter.
        signs: whether zeros must have their signs.
        levels: at which there are such kernels.
    """

    family: str
    name: str
    view: Callable[[], RegionView]
    sweep: Callable[[], Iterable[Sequence[Array]]]
    plan: Callable[[RegionView, str], PlannedRegion] | None = None
    cancels: float = 1.0
    not_run: Mapping[str, str] = field(default_factory=dict[str, str])
    wanted: Callable[[Sequence[Array]], Sequence[Array]] | None = None
    signs: bool = False
    levels: Sequence[str] = LEVELS

    @property
    def title(self) -> str:
        """Family and name."""
        return f"{self.family}: {self.name}"

    def compare(self, found: Array, wanted: Array, element: str) -> None:
        """Holds a result against float64: NaN must face NaN, infinity the same one, what is no float be equal.

        Raises:
            AssertionError: it is too far off.
        """
        limit = LIMITS.get(element)
        if limit is None:
            if found.dtype == np.bool_:  # 0 and 1 alone
                found, wanted = found.view(np.uint8), wanted.view(np.uint8)
            assert np.array_equal(found, wanted), "another integer"
            return
        exact = wanted.astype(np.float64)
        if self.signs:
            zeros = exact == 0
            alike = np.signbit(found[zeros]) == np.signbit(wanted[zeros])
            assert found.shape == wanted.shape and alike.all(), "a zero of the other sign"
        finite = np.abs(exact[np.isfinite(exact)])
        slack = self.cancels * LIMITS["f32" if element != "f64" else element] * float(finite.max(initial=1e-30))
        assert np.allclose(found.astype(np.float64), exact, rtol=limit, atol=slack, equal_nan=True), "too far off"
