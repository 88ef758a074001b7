"""Which family writes the kernel of a region: a table in order, the first that does not refuse wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from lowerkit.errors import UnsupportedError
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView


@lru_cache(maxsize=1)
def default_families() -> tuple[KernelFamily, ...]:
    """Returns the families in the order in which they are asked; the last one takes everything."""
    from lowerkit.targets.cpu.attention.attention import AttentionFamily
    from lowerkit.targets.cpu.conv.conv import ConvFamily
    from lowerkit.targets.cpu.conv.depthwise import DepthwiseFamily
    from lowerkit.targets.cpu.elementwise.elementwise import ElementwiseFamily
    from lowerkit.targets.cpu.elementwise.transpose import TransposeFamily
    from lowerkit.targets.cpu.gemm.integer_matmul import IntegerMatmulFamily
    from lowerkit.targets.cpu.gemm.matmul import MatmulFamily
    from lowerkit.targets.cpu.generic.empty import EmptyFamily
    from lowerkit.targets.cpu.generic.generic import GenericFamily
    from lowerkit.targets.cpu.movement.copy import CopyFamily
    from lowerkit.targets.cpu.movement.gather import GatherFamily
    from lowerkit.targets.cpu.movement.rope import RopeFamily
    from lowerkit.targets.cpu.movement.scatter import ScatterFamily
    from lowerkit.targets.cpu.reductions.cumulative import CumulativeFamily
    from lowerkit.targets.cpu.reductions.group_norm import GroupNormFamily
    from lowerkit.targets.cpu.reductions.pool import PoolFamily
    from lowerkit.targets.cpu.reductions.reduce import ReduceFamily
    from lowerkit.targets.cpu.reductions.row_norm import RowNormFamily
    from lowerkit.targets.cpu.reductions.softmax import SoftmaxFamily

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


def select_kernel(region: RegionView, cpu: CpuFeatures, families: Sequence[KernelFamily] | None = None) -> DeviceCode:
    """Returns the plan of the first family that takes ``region``, with the refusals before it.

    Raises:
        UnsupportedError: LK4001, an op has no lowering to linalg; LK4007, an invariant region has no kernel that is
            of one kind whatever its extents are.
        CodegenError: LK5001, the body cannot be lowered.
    """
    refusals: list[tuple[str, str]] = []
    for family in families if families is not None else default_families():
        answer = family.plan(region, cpu)
        if not isinstance(answer, Refusal):
            return replace(answer, refusals=tuple(refusals))
        if answer.of_extents and region.invariant:
            raise UnsupportedError(
                "LK4007",
                f"{region.kind} at {region.location or 'an unknown place'} has kernels of two kinds, by its extents, "
                f"and the same bits on every mesh are asked for: {answer.reason}",
                hint="keep what it is computed from whole, by the choice replicate, or leave --invariant out",
            )
        refusals.append((family.name, answer.reason))
    raise AssertionError("the last family takes every region")
