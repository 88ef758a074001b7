"""How a kernel multiplies: what an element of A and of B is in memory, and what one multiplication adds to a sum.

Vocabulary
    number: one value of the model's tensor.
    element: what one multiplication takes from A and from B: a number, or several that follow each other along the
        depth and fill 32 bits (two bf16, four bytes). Strides, depths and panels of the GEMM writers count elements.

A pair of bf16 is multiplied by ``vdpbf16ps`` (AVX512_BF16): two products a lane, exact in f32, and the sum of both
added to the lane's total. It does twice the multiplications of an f32 FMA in the same time.

Order of summation: of the depth's numbers 0, 1, 2 ... a lane adds pairs (0, 1), (2, 3) ... in order to one total, or to
as many totals as the tile has chains. Inside a pair the processor adds the odd product first and rounds to nearest
even after each addition. Numbers that are denormal count as zero, and so do totals that would be. What a pair lacks at
an odd end of the depth is zero on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.byte_dot_products import dot_bytes, multiply_words
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_text import KernelText
from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value, vector_type

__all__ = ["BF16_PAIRS", "BYTE_QUADS", "SINGLE_BYTES", "Arithmetic", "dot_pairs", "of_numbers", "takes_pairs"]


@dataclass(frozen=True)
class Arithmetic:
    """How elements are multiplied and summed.

    Attributes:
        number: type of a number.
        stored: type of an element in memory.
        operand: type of an element when it is multiplied; other than ``stored`` where it is widened on the way.
        accumulator: type of the sums.
        numbers: how many numbers an element holds.
        multiply_add: emits ``sums + a * b`` from A, B and the sums.
        latency: cycles from one multiplication into a total to the next.
        blocked_sums: whether a long depth is summed in blocks, for the digits that one long chain would lose. Exact
            sums need none, nor do f32 sums of bf16, whose result keeps 8 of their 24 digits.
    """

    number: str
    stored: str
    operand: str
    accumulator: str
    numbers: int
    multiply_add: Callable[[KernelText, Value, Value, Value], Value]
    latency: int = 4
    blocked_sums: bool = True

    @property
    def widens(self) -> bool:
        """Whether elements are converted on the way from memory to the multiplication."""
        return self.stored != self.operand


def of_numbers(number: str) -> Arithmetic:
    """Returns the arithmetic of single floats: f16 and bf16 are widened to f32."""
    wide = "f64" if number == "f64" else "f32"
    return Arithmetic(number, number, wide, wide, 1, KernelText.fma)


def dot_pairs(text: TextBuilder, left: Value, right: Value, sums: Value) -> Value:
    """``sums + left . right`` in each lane; operands are vectors of i32 that hold two bf16 each, 16 lanes."""
    assert sums.lanes == 16, "AVX512_BF16 is used on whole registers"
    kind = vector_type("bf16", 32)
    pairs = [text.op(f"vector.bitcast {value} : {value.type} to {kind}", kind) for value in (left, right)]
    return text.op(
        f'llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"({sums}, {pairs[0]}, {pairs[1]}) : '
        f"({sums.type}, {kind}, {kind}) -> {sums.type}",
        sums.type,
    )


BF16_PAIRS = Arithmetic("bf16", "i32", "i32", "f32", 2, dot_pairs, latency=6, blocked_sums=False)
"""Two bf16 of neighbouring depth."""

BYTE_QUADS = Arithmetic("i8", "i32", "i32", "i32", 4, dot_bytes, blocked_sums=False)
"""Four bytes of neighbouring depth, unsigned in A and signed in B."""

SINGLE_BYTES = Arithmetic("i8", "i8", "i32", "i32", 1, multiply_words, blocked_sums=False)
"""Single bytes, widened as :func:`multiply_words` takes them."""


def takes_pairs(number: str, cpu: CpuFeatures) -> bool:
    """Whether products of these numbers are made pair by pair at this level."""
    return number == "bf16" and cpu.avx512_bf16
