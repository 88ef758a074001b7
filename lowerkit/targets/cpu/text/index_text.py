"""Index arithmetic in kernel text, folded where the operands are known at compile time.

An index is a Python int or an ``i64`` Value. Arithmetic on two ints happens in Python, so static shapes leave no
address arithmetic in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value

__all__ = ["Index", "IndexText"]

Index = int | Value


class IndexText(TextBuilder):
    """A :class:`TextBuilder` that computes with indices."""

    def as_value(self, index: Index) -> Value:
        """``index`` as an ``i64`` value."""
        return index if isinstance(index, Value) else self.i64(index)

    def iadd(self, a: Index, b: Index) -> Index:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self._index_op("arith.addi", a, b)

    def isub(self, a: Index, b: Index) -> Index:
        """a - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self._index_op("arith.subi", a, b)

    def imul(self, a: Index, b: Index) -> Index:
        """a * b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self._index_op("arith.muli", a, b)

    def idiv(self, a: Index, b: Index) -> Index:
        """a // b of non-negative operands."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self._index_op("arith.divui", a, b)

    def irem(self, a: Index, b: Index) -> Index:
        """a % b of non-negative operands."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self._index_op("arith.remui", a, b)

    def imin(self, a: Index, b: Index) -> Index:
        """The smaller of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self._index_op("arith.minsi", a, b)

    def imax(self, a: Index, b: Index) -> Index:
        """The larger of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self._index_op("arith.maxsi", a, b)

    def iceildiv(self, a: Index, b: Index) -> Index:
        """ceil(a / b) of non-negative operands."""
        return self.idiv(self.iadd(a, self.isub(b, 1)), b)

    def iproduct(self, factors: Sequence[Index]) -> Index:
        """The product of all factors; 1 for none."""
        result: Index = 1
        for factor in factors:
            result = self.imul(result, factor)
        return result

    def dot(self, coordinates: Sequence[Index], strides: Sequence[Index]) -> Index:
        """The sum of products of coordinates and strides: the linear index of a point."""
        result: Index = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            result = self.iadd(result, self.imul(coordinate, stride))
        return result

    def unravel(self, linear: Index, sizes: Sequence[Index]) -> list[Index]:
        """Splits a row-major linear index into one coordinate per size."""
        coordinates: list[Index] = []
        for size in reversed(sizes[1:]):
            coordinates.append(self.irem(linear, size))
            linear = self.idiv(linear, size)
        return [linear, *reversed(coordinates)] if sizes else []

    def row_major(self, sizes: Sequence[Index]) -> list[Index]:
        """The strides, in elements, of a contiguous array of ``sizes``."""
        strides: list[Index] = []
        stride: Index = 1
        for size in reversed(sizes):
            strides.append(stride)
            stride = self.imul(stride, size)
        return strides[::-1]

    def _index_op(self, op: str, a: Index, b: Index) -> Value:
        return self.binary(op, self.as_value(a), self.as_value(b))
