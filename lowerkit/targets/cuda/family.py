"""What a family of kernels is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView


class KernelFamily(ABC):
    """One way to write the kernels of a region."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """Returns the launches of a region for a level, or why the family does not take it."""
