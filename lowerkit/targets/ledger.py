"""The ledger of a compilation: who took each region and each op, and why others did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView

__all__ = ["Compile", "LedgerEntry"]

Compile = Callable[[RegionView], DeviceCode]
"""Makes the code of a region."""


@dataclass(frozen=True)
class LedgerEntry:
    """Which family of which target took a region, and why others did not.

    Attributes:
        step: number of the step.
        name, kind, location: the region's.
        family, note: the kernel's.
        refusals: (family, reason) of those that were asked before.
        target: the accelerator that runs it, ``""`` for the host.
    """

    step: int
    name: str
    kind: str
    location: str
    family: str
    note: str
    refusals: tuple[tuple[str, str], ...]
    target: str = ""
