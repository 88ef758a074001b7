"""Which family writes the kernels of a region: a table in order, the first that does not refuse wins."""

from __future__ import annotations

from functools import lru_cache

from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.planner.plan import plan_region
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView


@lru_cache(maxsize=1)
def fast_families() -> tuple[KernelFamily, ...]:
    """Returns the families in Triton, in the order in which they are asked; none where Triton is not installed."""
    if not toolchain.version():
        return ()
    from lowerkit.targets.cuda.families.attention.attention import AttentionFamily
    from lowerkit.targets.cuda.families.elementwise import ElementwiseFamily
    from lowerkit.targets.cuda.families.gemv import GemvFamily
    from lowerkit.targets.cuda.families.matmul import MatmulFamily
    from lowerkit.targets.cuda.families.movement.copies import CopyFamily
    from lowerkit.targets.cuda.families.movement.gather import GatherFamily
    from lowerkit.targets.cuda.families.movement.insert import InsertFamily
    from lowerkit.targets.cuda.families.movement.scatter import ScatterFamily
    from lowerkit.targets.cuda.families.rope import RopeFamily
    from lowerkit.targets.cuda.families.rowwise.cumulative import CumulativeFamily
    from lowerkit.targets.cuda.families.rowwise.ordering import OrderingFamily
    from lowerkit.targets.cuda.families.rowwise.reduce import ReduceFamily
    from lowerkit.targets.cuda.families.rowwise.row_norm import RowNormFamily
    from lowerkit.targets.cuda.families.rowwise.softmax import SoftmaxFamily
    from lowerkit.targets.cuda.families.windows.conv import ConvFamily
    from lowerkit.targets.cuda.families.windows.depthwise import DepthwiseFamily
    from lowerkit.targets.cuda.families.windows.pool import PoolFamily
    from lowerkit.targets.cuda.families.windows.resize import ResizeFamily
    from lowerkit.targets.cuda.families.windows.transposed import TransposedFamily
    from lowerkit.targets.cuda.families.windows.transposed_depthwise import TransposedDepthwiseFamily

    return (
        GemvFamily(), MatmulFamily(), AttentionFamily(), RopeFamily(), ConvFamily(), DepthwiseFamily(), PoolFamily(),
        TransposedFamily(), TransposedDepthwiseFamily(), ResizeFamily(), RowNormFamily(), SoftmaxFamily(),
        ReduceFamily(), CumulativeFamily(), OrderingFamily(), GatherFamily(), ScatterFamily(), ElementwiseFamily(),
        InsertFamily(), CopyFamily(),
    )  # fmt: skip


def select_kernels(region: RegionView, level: str) -> tuple[PlannedRegion, tuple[tuple[str, str], ...]]:
    """Returns the launches of a region, and the refusals of the families that were asked before.

    Plain loops take what no fast family does.

    Raises:
        UnsupportedError: LK4001, an op has no lowering to linalg.
        CodegenError: LK5001, the body cannot be lowered.
    """
    refusals: list[tuple[str, str]] = []
    for family in fast_families():
        answer = family.plan(region, level)
        if not isinstance(answer, Refusal):
            return answer, tuple(refusals)
        refusals.append((family.name, answer.reason))
    return plan_region(region), tuple(refusals)
