"""A target as the partitioner sees it: every question goes to the target, every fault of it bears its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.asking import ask, require
from lowerkit.targets.capabilities import Capabilities
from lowerkit.targets.op_view import OpView
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import Accept, Target


@dataclass(frozen=True)
class Offer:
    """An accelerator, and the host that does the work where the accelerator does not."""

    target: Target
    host: Target

    @property
    def name(self) -> str:
        """Of the target."""
        return self.target.name

    @property
    def by_regions(self) -> bool:
        """Whether its functions are compiled region by region."""
        return self.target.unit == "region"

    def refusal(self, op: ir.Operation) -> str | None:
        """Returns why the target does not take an op; None where it does.

        Raises:
            CodegenError: LK5003, the target fails.
        """
        answer = ask(self.target, "accepts", (Accept, Refusal), OpView.of(op))
        return answer.reason if isinstance(answer, Refusal) else None

    def unprofitable(self, ops: Sequence[ir.Operation], transfer_bytes: int) -> str | None:
        """Returns why a function of ``ops`` is better left to the host; None where it is not.

        A target that states neither a throughput nor a cost of its own takes whatever holds a product or another lk op.

        Raises:
            CodegenError: LK5003, the target fails.
        """
        views = [OpView.of(op) for op in ops]
        work = sum(view.flops for view in views)
        stated = ask(self.target, "capabilities", Capabilities, self.target.level).throughput is not None
        if not stated and type(self.target).cost is Target.cost:
            heavy = any(view.name.startswith("lk.") for view in views)
            return None if heavy else f"{work} FLOPs are not worth {transfer_bytes} bytes that would cross"
        there = ask(self.target, "cost", (float, int), views, transfer_bytes)
        require(self.target, math.isfinite(there) and there >= 0, f"cost returned {there}, not seconds from 0 on")
        here = ask(self.host, "cost", (float, int), views, 0)
        if there <= here:
            return None
        return (
            f"{work} FLOPs take {there * 1e6:.1f} us there with {transfer_bytes} bytes that would cross, "
            f"{here * 1e6:.1f} us on the host"
        )

    def function_refusal(self, function: ir.Operation) -> str | None:
        """Returns why the target does not compile a function of ops that it takes; None where it does.

        Raises:
            CodegenError: LK5003, the target fails.
        """
        if self.target.unit == "region":
            return None
        answer = ask(self.target, "compile", (DeviceCode, Refusal), RegionView.from_function(function))
        return answer.reason if isinstance(answer, Refusal) else None
