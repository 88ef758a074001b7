"""Which family writes the kernel of a region: a table in order, the first that does not refuse wins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lowerkit.codegen.cpu.features import CpuFeatures
from lowerkit.codegen.kernel import KernelFamily, Refusal
from lowerkit.codegen.ledger import Selection
from lowerkit.codegen.region_view import RegionView


@lru_cache(maxsize=1)
def default_families() -> tuple[KernelFamily, ...]:
    """Returns the families in the order in which they are asked; the last one takes everything."""
    from lowerkit.codegen.cpu.attention import AttentionFamily
    from lowerkit.codegen.cpu.conv import ConvFamily
    from lowerkit.codegen.cpu.copy import CopyFamily
    from lowerkit.codegen.cpu.cumulative import CumulativeFamily
    from lowerkit.codegen.cpu.depthwise import DepthwiseFamily
    from lowerkit.codegen.cpu.elementwise import ElementwiseFamily
    from lowerkit.codegen.cpu.empty import EmptyFamily
    from lowerkit.codegen.cpu.gather import GatherFamily
    from lowerkit.codegen.cpu.generic import GenericFamily
    from lowerkit.codegen.cpu.group_norm import GroupNormFamily
    from lowerkit.codegen.cpu.integer_matmul import IntegerMatmulFamily
    from lowerkit.codegen.cpu.matmul import MatmulFamily
    from lowerkit.codegen.cpu.pool import PoolFamily
    from lowerkit.codegen.cpu.reduce import ReduceFamily
    from lowerkit.codegen.cpu.rope import RopeFamily
    from lowerkit.codegen.cpu.row_norm import RowNormFamily
    from lowerkit.codegen.cpu.scatter import ScatterFamily
    from lowerkit.codegen.cpu.softmax import SoftmaxFamily
    from lowerkit.codegen.cpu.transpose import TransposeFamily

    return (
        EmptyFamily(),
        MatmulFamily(),
        IntegerMatmulFamily(),
        DepthwiseFamily(),
        ConvFamily(),
        AttentionFamily(),
        SoftmaxFamily(),
        RowNormFamily(),
        GroupNormFamily(),
        PoolFamily(),
        ReduceFamily(),
        GatherFamily(),
        ScatterFamily(),
        RopeFamily(),
        CumulativeFamily(),
        TransposeFamily(),
        CopyFamily(),
        ElementwiseFamily(),
        GenericFamily(),
    )


def select_kernel(region: RegionView, cpu: CpuFeatures, families: Sequence[KernelFamily] | None = None) -> Selection:
    """Returns the plan of the first family that takes ``region``, with the refusals before it.

    Raises:
        UnsupportedError: LK4001, an op has no lowering to linalg.
        CodegenError: LK5001, the body cannot be lowered.
    """
    refusals: list[tuple[str, Refusal]] = []
    for family in families if families is not None else default_families():
        answer = family.plan(region, cpu)
        if not isinstance(answer, Refusal):
            return Selection(answer, tuple(refusals))
        refusals.append((family.name, answer))
    raise AssertionError("the last family takes every region")
