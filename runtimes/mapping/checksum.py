"""The CRC-32 of bytes that are read piece by piece: those of two pieces joined, without reading them again."""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0xEDB88320
"""Bit-reflected, as all polynomials here: x^0 is the highest bit."""


def joined(first: int, second: int, size: int) -> int:
    """Returns the CRC-32 of bytes whose CRC-32 is ``first``, and behind them ``size`` bytes with ``second``."""
    return _product(_shift(size), first) ^ second


@cache
def _shift(size: int) -> int:
    """x^(8 * size) modulo the polynomial, by repeated squaring."""
    result, square = 1 << 31, 1 << 23  # x^0, x^8
    while size:
        if size & 1:
            result = _product(result, square)
        square = _product(square, square)
        size >>= 1
    return result


def _product(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
