"""Regions whose results have no elements: there is nothing to compute, whatever the region says."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["EmptyFamily"]


class EmptyFamily(KernelFamily):
    """Results with a static extent of 0 each: no task. The other families may count on extents of 1 or more."""

    name: ClassVar[str] = "empty"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns a plan without tasks, or that a result has elements."""
        results = region.buffer_types[len(region.operands) :]
        if any(0 not in type_.shape for type_ in results):
            return Refusal("a result has elements")
        return DeviceCode(self.name, abi.kernel_module(""), task_count=0, note="no elements")
