"""Which tile a product gets: one that was measured, else the one that is predicted to be the fastest."""

from __future__ import annotations

from lowerkit.targets.cuda.families.gemm_maps import describe
from lowerkit.targets.cuda.families.gemm_problem import Gemm
from lowerkit.targets.cuda.model.measured_tiles import measured_tile
from lowerkit.targets.cuda.model.products import GemmTile, Product, best_tile
from lowerkit.targets.cuda.model.tma_tiles import TMA_LEVEL
from lowerkit.targets.plan import KernelExpr, Refusal, product

OPEN = 4096
"""The size that an open extent counts as."""


def asked_product(
    element: str,
    rows: KernelExpr,
    columns: KernelExpr,
    depth: KernelExpr,
    batch: KernelExpr,
    *,
    described: bool = False,
) -> Product:
    """Returns what a tile is chosen for: ``rows x columns x depth``, ``batch`` times; open extents count as many.

    An open depth is never split. ``described`` says whether the TMA unit can load both operands.
    """
    m, n, k, many = (max(size, 1) if isinstance(size, int) else OPEN for size in (rows, columns, depth, batch))
    return Product(m, n, k, many, element, isinstance(depth, int), described)


def asked_gemm(problem: Gemm, level: str) -> Product:
    """Returns what a tile is chosen for, of a product as it was read."""
    described = level == TMA_LEVEL and not isinstance(describe(problem), Refusal)
    return asked_product(
        problem.a.element, problem.rows, problem.columns, problem.depth, product(problem.batch), described=described
    )


def choose_tile(asked: Product, level: str) -> GemmTile:
    """Returns the tile of a product."""
    return measured_tile(asked, level) or best_tile(asked, level)


__all__ = ["OPEN", "GemmTile", "asked_gemm", "asked_product", "choose_tile"]
