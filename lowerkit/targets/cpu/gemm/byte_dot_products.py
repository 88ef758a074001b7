"""Products of bytes, summed exactly in 32 bits: dot products of four unsigned by four signed ones, and single ones.

An ``i32`` lane holds four bytes. With AVX512_VNNI one instruction does it (``vpdpbusd``, which does not saturate).
Elsewhere bytes are widened to 16 bits, even and odd ones apart, and ``vpmaddwd`` sums pairs: two of them, with two
additions. ``vpmaddubsw``, which takes bytes, saturates at 16 bits and would be wrong. Widening A is shared by the
vectors of a row, widening B by the rows of a tile.

Single products (``multiply_words``) are of lanes that hold one number of 9 bits and one weight: as pairs of 16 bits,
the upper half of the weight zero, they are one ``vpdpwssd``, or ``vpmaddwd`` and an addition. A multiplication of 32
bits (``vpmulld``) takes twice as long.
"""

from __future__ import annotations

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value, vector_type

__all__ = ["dot_bytes", "multiply_words", "widen_weight"]

_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}


def dot_bytes(text: TextBuilder, unsigned: Value, signed: Value, sums: Value) -> Value:
    """``sums + unsigned . signed`` in each lane; all three are vectors of i32 as wide as a register."""
    lanes = sums.lanes
    if text.vnni:
        assert lanes == 16, "AVX512_VNNI is used on whole registers"
        operands = [sums, _reinterpreted(text, unsigned, "i8", 4), _reinterpreted(text, signed, "i8", 4)]
        return _call(text, "llvm.x86.avx512.vpdpbusd.512", operands, sums.type)
    even, odd = text.like(0x00FF00FF, unsigned), text.like(8, unsigned)
    first = text.binary("arith.andi", unsigned, even)
    second = text.binary("arith.andi", text.binary("arith.shrui", unsigned, odd), even)
    halves = _reinterpreted(text, signed, "i16", 2)
    eight = text.like(8, halves)
    upper = text.binary("arith.shrsi", halves, eight)
    lower = text.binary("arith.shrsi", text.binary("arith.shli", halves, eight), eight)
    for left, right in ((first, lower), (second, upper)):
        pairs = [_reinterpreted(text, left, "i16", 2), right]
        sums = text.add(sums, _call(text, _PAIRS[lanes], pairs, sums.type))
    return sums


def widen_weight(text: TextBuilder, weight: Value) -> Value:
    """Bytes of a weight as :func:`multiply_words` takes them: i32 whose lower 16 bits are the number, the others 0."""
    return text.cast("arith.extui", text.cast("arith.extsi", weight, "i16"), "i32")


def multiply_words(text: TextBuilder, numbers: Value, weights: Value, sums: Value) -> Value:
    """``sums + numbers * weights`` in each lane of i32, of numbers of up to 16 bits with their sign."""
    operands = [_reinterpreted(text, value, "i16", 2) for value in (numbers, weights)]
    if text.vnni:
        assert sums.lanes == 16, "AVX512_VNNI is used on whole registers"
        return _call(text, "llvm.x86.avx512.vpdpwssd.512", [sums, *operands], sums.type)
    return text.add(sums, _call(text, _PAIRS[sums.lanes], operands, sums.type))


def _reinterpreted(text: TextBuilder, value: Value, element: str, parts: int) -> Value:
    kind = vector_type(element, value.lanes * parts)
    return text.op(f"vector.bitcast {value} : {value.type} to {kind}", kind)


def _call(text: TextBuilder, name: str, operands: list[Value], kind: str) -> Value:
    names, types = ", ".join(map(str, operands)), ", ".join(value.type for value in operands)
    return text.op(f'llvm.call_intrinsic "{name}"({names}) : ({types}) -> {kind}', kind)
