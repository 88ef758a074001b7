"""Where the operands of a ``linalg.generic`` lie: affine maps turned into strides over contiguous buffers.

Vocabulary
    point      one coordinate per iteration dimension.
    access     an operand's element at a point: ``offset + sum(coordinate * stride)``. Every map whose results are
               linear in the dimensions (permutations, broadcasts, constants, ``2 * d0 + 1``) is an access.
    position   which dimension of the operand an iteration dimension runs along, where the map says so plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText

__all__ = ["Access", "adjacent", "broadcast_strides", "linear_access", "linear_terms"]


@dataclass(frozen=True)
class Access:
    """An operand's place at a point.

    Attributes:
        buffer: where it lies.
        strides: elements between neighbours along each iteration dimension; 0 where it does not depend on it.
        positions: the operand's dimension that each iteration dimension runs along, unit dimensions not counted; None
            where there is none or where the map is more than a projected permutation.
        offset: the element at the origin.
    """

    buffer: Buffer
    strides: tuple[Index, ...]
    positions: tuple[int | None, ...]
    offset: Index = 0

    def at(self, text: KernelText, point: Sequence[Index]) -> Index:
        """Returns the linear index of the element at ``point``."""
        return text.iadd(text.dot(point, self.strides), self.offset)


def linear_terms(expression: ir.AffineExpr, rank: int) -> tuple[list[int], int] | None:
    """Returns ``(coefficient per dimension, constant)`` of a linear expression, None where it is not linear."""
    if isinstance(expression, ir.AffineConstantExpr):
        return [0] * rank, ir.AffineConstantExpr(expression).value
    if isinstance(expression, ir.AffineDimExpr):
        coefficients = [0] * rank
        coefficients[ir.AffineDimExpr(expression).position] = 1
        return coefficients, 0
    if isinstance(expression, ir.AffineAddExpr):
        binary = ir.AffineAddExpr(expression)
        left, right = linear_terms(binary.lhs, rank), linear_terms(binary.rhs, rank)
        if left is None or right is None:
            return None
        return [a + b for a, b in zip(left[0], right[0], strict=True)], left[1] + right[1]
    if isinstance(expression, ir.AffineMulExpr):
        binary = ir.AffineMulExpr(expression)
        left, right = linear_terms(binary.lhs, rank), linear_terms(binary.rhs, rank)
        if left is None or right is None:
            return None
        if any(left[0]):
            left, right = right, left
        if any(left[0]):
            return None
        return [left[1] * term for term in right[0]], left[1] * right[1]
    return None


def linear_access(text: KernelText, map_: ir.AffineMap, buffer: Buffer, sizes: Sequence[Index]) -> Access | None:
    """Returns the access of an operand of ``sizes`` through ``map_``; None where the map is not linear.

    Dynamic strides are computed where ``text`` stands: call this in the head of the kernel.
    """
    rank = map_.n_dims
    strides: list[Index] = [0] * rank
    positions: list[int | None] = [None] * rank
    offset: Index = 0
    plain = True
    position = 0
    for expression, size, stride in zip(map_.results, sizes, text.row_major(sizes), strict=True):
        terms = linear_terms(expression, rank)
        if terms is None:
            return None
        coefficients, constant = terms
        used = [dim for dim, coefficient in enumerate(coefficients) if coefficient]
        for dim in used:
            strides[dim] = text.iadd(strides[dim], text.imul(stride, coefficients[dim]))
        offset = text.iadd(offset, text.imul(stride, constant))
        if size != 1:
            if len(used) == 1 and coefficients[used[0]] == 1 and constant == 0 and positions[used[0]] is None:
                positions[used[0]] = position
            elif used or constant:
                plain = False
            position += 1
    if not plain:
        positions = [None] * rank
    return Access(buffer, tuple(strides), tuple(positions), offset)


def adjacent(access: Access, outer: int, inner: int, sizes: Sequence[Index]) -> bool:
    """True when stepping ``outer`` is the same as stepping ``inner`` past its end."""
    if access.strides[outer] == 0 and access.strides[inner] == 0:
        return True
    first, second = access.positions[outer], access.positions[inner]
    if first is not None and second is not None:
        return second == first + 1
    steps, size, long = access.strides[inner], sizes[inner], access.strides[outer]
    if isinstance(steps, int) and isinstance(size, int) and isinstance(long, int):
        return steps * size == long
    return False


def broadcast_strides(text: KernelText, sizes: Sequence[Index], rank: int) -> list[Index]:
    """Returns strides over ``rank`` dimensions of an operand of ``sizes`` that broadcasts as numpy does.

    A dynamic size may turn out to be 1: its stride is chosen at run time.
    """
    kept: list[Index] = []
    for size, stride in zip(sizes, text.row_major(sizes), strict=True):
        if isinstance(size, int):
            kept.append(0 if size == 1 else stride)
        else:
            unit = text.compare("eq", size, text.i64(1))
            kept.append(text.select(unit, text.i64(0), text.as_value(stride)))
    return [0] * (rank - len(kept)) + kept
