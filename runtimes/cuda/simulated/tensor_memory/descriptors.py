"""What tcgen05.mma multiplies: its instruction descriptor of 32 bits, and the descriptors of matrices in shared memory.

Of the instruction descriptor, from the lowest bit: 3 of sparsity, 1 for sums of integers that stay in their range, 2 of
the type of D, 1, 3 of the type of A and of B, 1 each that negates and 1 each that transposes A and B, 6 of N / 8, 1, 5
of M / 16, 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.matrix_descriptors import Layout, offsets_of
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import PIECE
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import BadTensorMemory

DEPTH = 32  # bytes along K
_TYPES: Mapping[str, Mapping[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2"},
    "i8": {0: "u8", 1: "s8"},
}
KINDS = tuple(f"kind::{kind}" for kind in _TYPES)
_F32, _S32 = 1, 2
_SIZES: Mapping[str, int] = {"f16": 2, "tf32": 4, "f8f6f4": 1, "i8": 1}
# Bits that must be 0: sparsity, and those that mean nothing or belong to forms that are not known.
_NOT_KNOWN = 0b111 | 1 << 6 | 1 << 23 | 0b111 << 29
_VERSION = 0b001
_SPANS: Mapping[int, int] = {0: PIECE, 2: 128, 4: 64, 6: 32}


@dataclass(frozen=True)
class Form:
    """What a product is made of.

    Attributes:
        kind: f16, tf32, f8f6f4 or i8.
        a, b: types.
        rows, columns: of D.
        negated: whether A, and B, are.
        transposed: whether M rather than K is contiguous in A, N in B.
        saturates: whether sums of integers stay in their range.
    """

    kind: str
    a: str
    b: str
    rows: int
    columns: int
    negated: tuple[bool, bool]
    transposed: tuple[bool, bool]
    saturates: bool

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return _SIZES[self.kind]

    @property
    def depth(self) -> int:
        """Elements along K."""
        return DEPTH // self.size

    @property
    def lanes(self) -> Array:
        """Lane of each row of A and D, counted from the address, int64 [rows]: 64 rows take half the lanes."""
        row = np.arange(self.rows)
        return row if self.rows == 128 else row // 16 * 32 + row % 16


@lru_cache(maxsize=256)
def read_form(kind: str, bits: int) -> Form:
    """Returns what an instruction descriptor says of a product of ``kind``.

    Raises:
        BadTensorMemory: it is none, or one that is not known.
    """
    a, b = (_TYPES[kind].get(bits >> at & 7) for at in (7, 10))
    rows, columns = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
    negated, transposed = ((bool(bits >> at & 1), bool(bits >> at + 1 & 1)) for at in (13, 15))
    saturates = bool(bits >> 3 & 1)
    integers = kind == "i8"
    result = bits >> 4 & 3
    if bits & _NOT_KNOWN or a is None or b is None or result != (_S32 if integers else _F32):
        raise BadTensorMemory(f"takes 0x{bits:08x} for an instruction descriptor of {kind}: types that are not known")
    if (kind == "f16" and a != b) or (saturates and not integers) or (integers and any(negated)):
        raise BadTensorMemory(f"takes 0x{bits:08x} for an instruction descriptor of {kind}, which has no such product")
    step = 16 if (integers and columns > 32) or (_SIZES[kind] == 1 and transposed[1]) else 8
    if rows not in (64, 128) or not 8 <= columns <= 256 or columns % step:
        raise BadTensorMemory(f"multiplies to {rows} rows and {columns} columns, which {kind} cannot")
    if kind == "tf32" and any(transposed):
        raise BadTensorMemory("transposes a matrix of tf32: only a swizzle of 32-byte atoms can, which is not known")
    return Form(kind, a, b, rows, columns, negated, transposed, saturates)


def read_layout(descriptors: Array) -> Layout:
    """Returns where matrices in shared memory lie, by their descriptors, uint64 [tiles].

    Raises:
        BadTensorMemory: they are none that are known, or have several swizzles.
    """
    fields = descriptors.astype(np.uint64)
    modes = np.unique(fields >> np.uint64(61))
    fixed = fields >> np.uint64(46) & np.uint64((1 << 15) - 1)  # bits 46 to 60
    if modes.size > 1 or int(modes[0]) not in _SPANS or (fixed != _VERSION).any():
        raise BadTensorMemory(
            f"takes 0x{int(descriptors[0]):016x} for a matrix descriptor: a swizzle, a base offset or a mode that is "
            "not known"
        )
    return Layout(*offsets_of(descriptors), _SPANS[int(modes[0])])
