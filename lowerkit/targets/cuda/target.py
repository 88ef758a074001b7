"""The CUDA target: kernels of the fast families, in Triton, and plain loops dealt out to threads for what they refuse.

Both become PTX, and machine code where ptxas is found, for one level or several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from lowerkit.passes.base import Pass
from lowerkit.runtimes.cuda.levels import levels_of
from lowerkit.targets.capabilities import Capabilities
from lowerkit.targets.cuda.acceptance import refusal
from lowerkit.targets.cuda.levels import LEVELS
from lowerkit.targets.cuda.passes import cuda_passes
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.ptx.link import link_regions
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.op_view import OpView
from lowerkit.targets.plan import DeviceCode, LinkedCode, LinkSettings, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import Accept, Target
from lowerkit.targets.witness import Array, Witness


class CudaTarget(Target):
    """Cards of one compute capability, or of each of several."""

    name: ClassVar[str] = "cuda"
    levels: ClassVar[tuple[str, ...]] = LEVELS
    several_levels: ClassVar[bool] = True
    permits: ClassVar[Mapping[str, str]] = {"tf32": "f32 factors of products rounded to 11 bits, for tensor cores"}
    unit: ClassVar[Literal["function", "region"]] = "region"

    def capabilities(self, level: str) -> Capabilities:
        """Returns that extents may be open; what ops there are has no bounds to state."""
        return Capabilities(open_extents=True)

    def accepts(self, op: OpView) -> Accept | Refusal:
        """Takes every op that there is code for."""
        reason = refusal(op)
        return Accept() if reason is None else Refusal(reason)

    def passes(self, stage: str) -> Sequence[Pass]:
        """Returns the target's own passes to ``stage``; see :func:`~lowerkit.targets.cuda.passes.cuda_passes`."""
        return cuda_passes(stage)

    def compile(self, function: RegionView) -> DeviceCode | Refusal:
        """Returns a region as launches.

        Raises:
            UnsupportedError: LK4001, an op has no lowering to linalg.
            CodegenError: LK5001, the body cannot be lowered.
        """
        planned: dict[str, PlannedRegion] = {}
        refusals: tuple[tuple[str, str], ...] = ()
        for level in levels_of(self.level):
            planned[level], refusals = select_kernels(function.allowing(self.allowed), level)
        first = planned[levels_of(self.level)[0]]
        layouts, in_place = first.layouts(), first.function.in_place
        assert all(each.layouts() == layouts for each in planned.values()), "weights lie one way for all levels"
        assert all(each.function.in_place == in_place for each in planned.values()), "so do results"
        return DeviceCode(
            first.family,
            msgspec.json.encode(planned),
            packings=layouts,
            note=first.note,
            in_place=in_place,
            refusals=refusals,
        )

    def link(self, codes: Sequence[DeviceCode], settings: LinkSettings) -> LinkedCode:
        """Compiles the kernels and puts them into one image.

        Raises:
            CodegenError: LK5001, a kernel could not be made, or ptxas does not take it.
        """
        return link_regions(codes, settings)

    def witnesses(self, region: RegionView, inputs: Sequence[Array]) -> Sequence[Witness]:
        """Returns Triton's interpreter and the PTX alone, for the first of several levels."""
        from lowerkit.targets.cuda.witness.witnesses import witnesses

        return witnesses(region.allowing(self.allowed), inputs, levels_of(self.level)[0])

    def cost(self, ops: Sequence[OpView], transfer_bytes: int) -> float:
        """Returns 0: whoever names the target wants the model there, and values that stay there cost no transfer."""
        return 0.0

    def runs_here(self) -> bool:
        """Returns whether this machine has a card that runs code of the level."""
        from lowerkit.runtimes.cuda.libcuda import has_card

        return has_card(self.level)
