"""Products whose operands the TMA unit loads, with small tiles and few blocks: every tail, several tiles a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.gemm_problem import read_gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.families.matmul import plan_gemm
from lowerkit.targets.cuda.model.tma_tiles import TMA_LEVEL
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.cuda.product_epilogues import product_with_epilogue
from tests.support.cuda.proofs.case import Array, Case
from tests.support.cuda.proofs.products import Shape, integers, product

PROCESSORS = 2
_WHY_NOT = {
    "trap": "it is there so that ptxas moves nothing across it",
    "waitLoop": "the simulated device waits in the instruction before",
}


def tiled(tile: GemmTile) -> Any:
    """Plans a product with a tile; a persistent kernel has two blocks, also where there is one tile or none."""

    def plan(view: RegionView, level: str) -> PlannedRegion:
        assert view.anchor is not None and level == TMA_LEVEL
        frame, anchor = Frame(view), view.anchor.operation
        problem, epilogue = read_gemm(frame, anchor), read_epilogue(view, frame, anchor)
        assert not isinstance(problem, Refusal)
        assert not isinstance(epilogue, Refusal)
        element = str(ir.RankedTensorType(anchor.results[0].type).element_type)
        planned = plan_gemm("gemm", frame, problem, epilogue, tile, element, PROCESSORS)
        if not tile.persistent:
            return planned
        (launch,) = planned.function.launches
        launches = [msgspec.structs.replace(launch, blocks=PROCESSORS)]
        return msgspec.structs.replace(planned, function=msgspec.structs.replace(planned.function, launches=launches))

    return plan


def _case(
    name: str, view: Any, shapes: Sequence[Shape], opens: Sequence[Sequence[int]], element: str, tile: GemmTile
) -> Case:
    """``opens`` are the sizes that the open extents of each operand take in a run, in order."""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, sizes in enumerate(opens):
            known = [_known(shape, iter(sizes)) for shape in shapes]
            yield [integers(shape, element, 100 * number + seed) for number, shape in enumerate(known)]

    kind = "persistent, " if tile.persistent else ""
    title = f"{kind}TMA, {element}, {tile.m} x {tile.n} x {tile.k}, {name}"
    return Case("gemm", title, view, sweep, tiled(tile), cancels=0.1, not_run=_WHY_NOT, levels=(TMA_LEVEL,))


def _known(shape: Shape, sizes: Iterator[int]) -> list[int]:
    return [next(sizes) if isinstance(each, str) else each for each in shape]


def _open_rows(n: int, k: int, rows: Sequence[int], element: str, tile: GemmTile) -> Case:
    def view() -> RegionView:
        return product(["?", k], [k, n], ["?", n], element)

    return _case(f"open rows, N {n}, K {k}", view, (["?", k], [k, n]), [(each,) for each in rows], element, tile)


def _open_depth(m: int, n: int, opens: Sequence[tuple[int, int]], element: str, tile: GemmTile) -> Case:
    def view() -> RegionView:
        return product(["?", "?", m], ["?", "?", n], ["?", m, n], element, lhs=True)

    shapes: Sequence[Shape] = (["?", "?", m], ["?", "?", n])
    return _case(f"open batch and K, M {m}, N {n}", view, shapes, opens, element, tile)


def _batch(m: int, n: int, k: int, counts: Sequence[int], element: str, tile: GemmTile) -> Case:
    def view() -> RegionView:
        return product(["?", m, k], ["?", n, k], ["?", m, n], element, rhs=True)

    return _case(
        f"open batch of {m} x {n} x {k}", view, (["?", m, k], ["?", n, k]), [(each,) for each in counts], element, tile
    )


def _residual(n: int, k: int, rows: Sequence[int], tile: GemmTile) -> Case:
    def view() -> RegionView:
        return RegionView.from_text(product_with_epilogue("residual", "?", n, k), "matmul")

    shapes: Sequence[Shape] = (["?", k], [k, n], [n], ["?", n])
    return _case(f"a row and a matrix added, N {n}, K {k}", view, shapes, [(each,) for each in rows], "bf16", tile)


ONE = GemmTile(64, 32, 32, 4, 3, tma=True)
SEVERAL = GemmTile(64, 32, 64, 4, 3, tma=True, persistent=True)
CASES = [
    _open_rows(104, 152, (65, 1, 64, 63, 600), "bf16", ONE),
    _open_rows(104, 72, (65, 1, 600, 0), "f16", SEVERAL),
    _open_depth(
        72, 104, ((1, 72), (1, 1), (2, 64), (1, 0), (0, 64), (1, 129), (1, 250), (2, 0), (0, 0)), "bf16", SEVERAL
    ),
    _batch(40, 40, 72, (5, 1), "bf16", ONE),
    _residual(104, 136, (153, 1, 64, 89), GemmTile(64, 96, 64, 4, 3, tma=True)),
    _residual(72, 264, (65, 1), GemmTile(64, 32, 64, 4, 3, 2, tma=True)),
]
