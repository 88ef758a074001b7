"""Sizes of an attention kernel: the problem, the register tile and blocks, and where a mask lies."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.arithmetic import Arithmetic
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index

__all__ = ["AttentionShape", "AttentionTiling", "MaskAccess"]


@dataclass(frozen=True)
class AttentionTiling:
    """Sizes of the register tile and of the blocks in cache."""

    lanes: int
    vectors: int
    tile_rows: int
    block_keys: int

    @property
    def block_rows(self) -> int:
        """Queries of one task."""
        return self.lanes * self.vectors

    def may_end_narrow(self, rows: Index) -> bool:
        """Whether the last block may hold no more rows than one vector: a narrow tile does it in half the time."""
        if self.vectors == 1:
            return False
        return not isinstance(rows, int) or 0 < rows % self.block_rows <= self.lanes


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention: ``rows`` queries in a row of memory share one key/value head.

    ``fill`` and ``empty_rows`` are those of ``lk.attention``; ``fill`` is None where the mask is added.

    ``rows`` is the number of queries M, or group * M where the query heads of a group are ``stacked``: with few
    queries (decoding) that fills the lanes. ``queries`` is M.

    ``arithmetic`` is that of both products: features of queries and keys are multiplied element by element, and so are
    keys of weights and values.
    """

    rows: Index
    queries: Index
    keys: Index
    depth: int
    value_depth: int
    scale: float
    arithmetic: Arithmetic
    causal: bool
    fill: float | None = None
    empty_rows: str = "zero"
    stacked: bool = False


@dataclass(frozen=True)
class MaskAccess:
    """Where the mask of one (batch, head) lies: element (m, t) is at ``base + m * query_stride + t * key_stride``."""

    buffer: Buffer
    base: Index
    head_stride: Index
    query_stride: Index
    key_stride: Index
