"""Which tile a product gets: the one that is predicted to be the fastest."""

from __future__ import annotations

from lowerkit.targets.cuda.model.products import GemmTile, Product, best_tile
from lowerkit.targets.plan import KernelExpr

OPEN = 4096
"""The size that an open extent counts as."""


def choose_tile(
    element: str, rows: KernelExpr, columns: KernelExpr, depth: KernelExpr, batch: KernelExpr, level: str
) -> GemmTile:
    """Returns the tile for a product of ``rows x columns x depth``, ``batch`` times; open extents count as many.

    An open depth is never split.
    """
    m, n, k, many = (max(size, 1) if isinstance(size, int) else OPEN for size in (rows, columns, depth, batch))
    return best_tile(Product(m, n, k, many, element), level, split=isinstance(depth, int))


__all__ = ["GemmTile", "choose_tile"]
