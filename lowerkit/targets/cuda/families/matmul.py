"""``lk.matmul`` and ``lk.integer_matmul`` on tensor cores: tiles of the result, K in steps, the epilogue in registers.

Where there are fewer tiles than a card has processors and K is long, K is **split**: each part is summed by a block of
its own into a temporary of f32, and a second launch adds the parts up, in order, and does the epilogue.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.runtimes.cuda.image import Product
from lowerkit.targets.cuda.families.gemm_kernel import write_gemm, write_parts, write_sum_of_parts
from lowerkit.targets.cuda.families.gemm_problem import Gemm, read_gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile, choose_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, element_bytes
from lowerkit.targets.plan import Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView


class MatmulFamily(KernelFamily):
    """Products of floats and of bytes, static or open extents alike."""

    name: ClassVar[str] = "gemm"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name not in ("lk.matmul", "lk.integer_matmul"):
            return Refusal("the anchor is no product of matrices")
        frame = Frame(region)
        problem = read_gemm(frame, anchor.operation)
        if isinstance(problem, Refusal):
            return problem
        epilogue = read_epilogue(region, frame, anchor.operation)
        if isinstance(epilogue, Refusal):
            return epilogue
        result = str(ir.RankedTensorType(anchor.operation.results[0].type).element_type)
        tile = choose_tile(
            problem.a.element, problem.rows, problem.columns, problem.depth, product(problem.batch), level
        )
        return plan_gemm(self.name, frame, problem, epilogue, tile, result)


def plan_gemm(
    family: str, frame: Frame, problem: Gemm, epilogue: Epilogue, tile: GemmTile, result: str
) -> PlannedRegion:
    """Returns the launches of a product with a tile; ``result`` is the element type of the anchor's result."""
    tiles = product(
        [*problem.batch, expression("ceildiv", problem.rows, tile.m), expression("ceildiv", problem.columns, tile.n)]
    )
    sizes = [buffer.bytes for buffer in frame.buffers]
    written = total([each.bytes for each in frame.results])
    operands = [sizes[number] for number in sorted({problem.a.pointer, problem.b.pointer})]
    others = [sizes[number] for number in sorted(epilogue.read_operands() - {problem.a.pointer, problem.b.pointer})]
    note = f"tiles of {tile.m} x {tile.n} x {tile.k}, {tile.warps} warps, {tile.stages} stages"
    buffers = list(range(len(sizes)))
    computes = Product(
        problem.rows, problem.columns, problem.depth, product(problem.batch), problem.a.element,
        (tile.m, tile.n, tile.k), tile.stages,
    )  # fmt: skip
    if tile.split == 1:
        kernel = write_gemm(family, frame, problem, tile, epilogue, result)
        launch = PlannedLaunch(
            kernel, buffers, tiles, problem.flops, total([*operands, *others]), written, computes=computes
        )
        return planned_region(frame, [launch], note=note)
    count = product([*problem.batch, problem.rows, problem.columns])
    parts = expression("mul", count, tile.split * element_bytes(problem.accumulator))
    first = write_parts(family, frame, problem, tile)
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
        ),
        PlannedLaunch(second, [*buffers, len(buffers)], blocks, 0, total([parts, *others]), written),
    ]
    return planned_region(frame, launches, [parts], note=f"{note}, K in {tile.split} parts")
