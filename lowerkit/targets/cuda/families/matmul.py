"""``lk.matmul`` and ``lk.integer_matmul`` on tensor cores: tiles of the result, K in steps, the epilogue in registers.

Where there are fewer tiles than a card has processors and K is long, K is **split**: each part is summed by a block of
its own into a temporary of f32, and a second launch adds the parts up, in order, and does the epilogue.

At ``sm_90`` the TMA unit loads operands of 16 bits that it can address, where such a tile is predicted to be as fast.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.runtimes.cuda.image import Product
from lowerkit.targets.cuda.families.gemm_kernel import write_gemm, write_parts, write_sum_of_parts
from lowerkit.targets.cuda.families.gemm_maps import describe
from lowerkit.targets.cuda.families.gemm_places import count_tiles
from lowerkit.targets.cuda.families.gemm_problem import Gemm, read_gemm_region
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile, asked_gemm, choose_tile
from lowerkit.targets.cuda.families.gemm_tma import write_tma_gemm, write_tma_parts
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.model.measured_tiles import asked_text
from lowerkit.targets.cuda.model.shortlists import tile_words
from lowerkit.targets.cuda.model.tma_tiles import TMA_LEVEL, runs_of
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, element_bytes
from lowerkit.targets.plan import Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView


class MatmulFamily(KernelFamily):
    """Products of floats and of bytes, static or open extents alike."""

    name: ClassVar[str] = "gemm"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        read = read_gemm_region(region)
        if isinstance(read, Refusal):
            return read
        asked = asked_gemm(read.problem, level)
        tile = choose_tile(asked, level)
        planned = plan_gemm(self.name, read.frame, read.problem, read.epilogue, tile, read.result)
        return planned.asking(asked_text(asked))


def plan_gemm(
    family: str,
    frame: Frame,
    problem: Gemm,
    epilogue: Epilogue,
    tile: GemmTile,
    result: str,
    processors: int = card_of(TMA_LEVEL).sms,
) -> PlannedRegion:
    """Returns the launches of a product with a tile.

    Args:
        family: that writes it.
        frame: of the region.
        problem: the product.
        epilogue: what follows.
        tile: how it is cut; one of the TMA unit only where :func:`describe` does not refuse.
        result: the element type of the anchor's result.
        processors: the blocks that a persistent kernel has at most.
    """
    described = describe(problem) if tile.tma else None
    assert not isinstance(described, Refusal), "only what the TMA unit can load gets such a tile"
    maps = [] if described is None else [described.a.map, *(described.b.map for _ in runs_of(tile.n))]
    tiles = product([*problem.batch, *count_tiles(problem, tile)])
    sizes = [buffer.bytes for buffer in frame.buffers]
    written = total([each.bytes for each in frame.results])
    operands = [sizes[number] for number in sorted({problem.a.pointer, problem.b.pointer})]
    others = [sizes[number] for number in sorted(epilogue.read_operands() - {problem.a.pointer, problem.b.pointer})]
    note = f"tiles of {tile_words(tile)}"
    buffers = list(range(len(sizes)))
    computes = Product(
        problem.rows, problem.columns, problem.depth, product(problem.batch), problem.a.element,
        (tile.m, tile.n, tile.k), tile.stages,
    )  # fmt: skip
    if tile.split == 1:
        if described is None:
            kernel = write_gemm(family, frame, problem, tile, epilogue, result)
        else:
            kernel = write_tma_gemm(family, frame, described, problem, tile, epilogue, result)
        blocks = expression("min", tiles, processors) if tile.persistent else tiles
        read = total([*operands, *others])
        launch = PlannedLaunch(
            kernel, buffers, blocks, problem.flops, read, written, computes=computes, maps=maps,
            shared_out=tile.persistent,
        )  # fmt: skip
        return planned_region(frame, [launch], note=note)
    count = product([*problem.batch, problem.rows, problem.columns])
    parts = expression("mul", count, tile.split * element_bytes(problem.accumulator))
    if described is None:
        first = write_parts(family, frame, problem, tile)
    else:
        first = write_tma_parts(family, frame, described, problem, tile)
    second, blocks = write_sum_of_parts(family, frame, problem, tile, epilogue, result)
    launches = [
        PlannedLaunch(
            first,
            [*buffers, len(buffers)],
            expression("mul", tiles, tile.split),
            problem.flops,
            total(operands),
            parts,
            computes=computes,
            maps=maps,
        ),
        PlannedLaunch(second, [*buffers, len(buffers)], blocks, 0, total([parts, *others]), written),
    ]
    return planned_region(frame, launches, [parts], note=note)
