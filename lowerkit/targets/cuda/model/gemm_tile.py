"""A matrix product, and how it is cut into tiles."""

from __future__ import annotations

import msgspec

ITEMS = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i8": 1, "u8": 1}
"""Bytes of an element, by the name that lk has for it."""


class GemmTile(msgspec.Struct, frozen=True, tag="gemm"):
    """How a product is cut.

    Attributes:
        m, n, k: rows and columns of a tile, and the depth of a step.
        warps: of a block.
        stages: how many steps are loaded ahead.
        split: parts of the depth.
        tma: whether the TMA unit loads the operands; else the threads do.
        persistent: whether a block makes one tile after the other, as many blocks as there are SMs.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1
    tma: bool = False
    persistent: bool = False


class Product(msgspec.Struct, frozen=True, tag="gemm"):
    """``batch`` products of ``rows x depth`` and ``depth x columns``; ``element`` as lk names it.

    ``parts`` says whether the depth may be cut into parts, ``described`` whether the TMA unit can load both operands.
    """

    rows: int
    columns: int
    depth: int
    batch: int
    element: str
    parts: bool = True
    described: bool = False

    @property
    def flops(self) -> int:
        """Operations, a product and a sum each."""
        return 2 * self.batch * self.rows * self.columns * self.depth


def tiles_of(product: Product, tile: GemmTile) -> int:
    """Returns how many tiles the result has."""
    return product.batch * -(-product.rows // tile.m) * -(-product.columns // tile.n)
