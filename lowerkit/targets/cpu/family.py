"""What a family of the CPU is: one way to write kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView


class KernelFamily(ABC):
    """One way to write kernels. Stateless: the same region and level give the same plan."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan for ``region`` on ``cpu``, or the reason for not taking it."""
