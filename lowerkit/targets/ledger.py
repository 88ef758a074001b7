"""The ledger of a compilation: which kernel family took each region, and why others did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowerkit.targets.plan import KernelPlan, Refusal
from lowerkit.targets.region_view import RegionView

if TYPE_CHECKING:
    from lowerkit.targets.cpu.levels import CpuFeatures

__all__ = ["LedgerEntry", "Select", "Selection"]


@dataclass(frozen=True)
class Selection:
    """The plan for a region, and the families that were asked before with their reasons."""

    plan: KernelPlan
    refusals: tuple[tuple[str, Refusal], ...] = ()


Select = Callable[[RegionView, "CpuFeatures"], Selection]
"""Chooses a kernel for a region."""


@dataclass(frozen=True)
class LedgerEntry:
    """Which family took a region, and why others did not.

    Attributes:
        step: number of the step.
        name, kind, location: the region's.
        family, note: the kernel's.
        refusals: (family, reason) of those that were asked before.
    """

    step: int
    name: str
    kind: str
    location: str
    family: str
    note: str
    refusals: tuple[tuple[str, str], ...]
