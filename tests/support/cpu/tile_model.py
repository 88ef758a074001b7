"""AMX and AVX512_BF16 instructions as functions of plain vectors: kernels for them run on machines that lack them.

A kernel's MLIR text names the instructions as LLVM intrinsics. :func:`modelled` replaces each call by a call of a
function in the same module that does what Intel's manual (volume 2, "TDPBF16PS" and "VDPBF16PS") says the instruction
does, step by step:

    number    bf16 widened to f32; a denormal one counts as zero of its sign (DAZ).
    FMA       one rounding to nearest even; a denormal addend or result becomes zero of its sign (DAZ, FTZ).
    tile      16 rows of 16 lanes of 32 bits; rows and bytes beyond its shape are zero.
    TDPBF16PS for each row m and column n two sums from zero over the pairs k: of the even numbers, of the odd ones.
              Their sum is added to the destination.
    VDPBF16PS the odd product, then the even one, each an FMA into the destination.
    VCVTNEPS2BF16 to nearest even; a denormal number becomes zero of its sign, a NaN quiet.

What is modelled so are values; how the tiles are configured is LLVM's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["modelled"]

_ROWS, _LANES = 16, 16
_TILE = f"vector<{_ROWS}x{_LANES}xi32>"
_WORDS, _SUMS, _PAIRS = "vector<16xi32>", "vector<16xf32>", "vector<32xbf16>"
_CALL = re.compile(r'llvm\.call_intrinsic "llvm\.x86\.(?:avx512bf16\.)?(\w+?)(?:\.internal|\.512)"')
_NARROW = re.compile(r"arith\.truncf (%\w+) : vector<(\d+)xf32> to vector<(\d+)xbf16>")


def modelled(text: str) -> str:
    """Returns the module with each AMX and AVX512_BF16 intrinsic replaced by a call of its model."""
    used = set(_CALL.findall(text))
    assert used <= set(_MODELS), f"there is no model of {used - set(_MODELS)}"
    text = _CALL.sub(r"func.call @\1", text).replace("!llvm.x86_amx", _TILE)
    lanes = {int(match[1]) for match in _NARROW.findall(text)}
    text = _NARROW.sub(r"func.call @narrow\2(\1) : (vector<\2xf32>) -> vector<\2xbf16>", text)
    functions = "".join(_MODELS[name]() for name in sorted(used)) + "".join(_narrow(count) for count in sorted(lanes))
    return text.replace("module {\n", "module {\n" + functions + (_helpers() if used else ""), 1)


class _Body:
    """Lines of one function with fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = (f"%m{number}" for number in _count())

    def op(self, text: str) -> str:
        name = next(self._names)
        self.lines.append(f"  {name} = {text}")
        return name


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _function(signature: str, body: _Body) -> str:
    return f"func.func private {signature} {{\n" + "\n".join(body.lines) + "\n}\n"


def _helpers() -> str:
    """``@fma(a, b, c)`` of factors that are no denormals, ``@flushed(a)``: denormals as zero of their sign."""
    fma = _Body()
    addend = fma.op(f"func.call @flushed(%c) : ({_SUMS}) -> {_SUMS}")
    exact = fma.op(f"math.fma %a, %b, {addend} : {_SUMS}")
    _flush(fma, exact, "0x00800000")
    flushed = _Body()
    _flush(flushed, "%a", "0x00800000")
    return _function(f"@fma(%a: {_SUMS}, %b: {_SUMS}, %c: {_SUMS}) -> {_SUMS}", fma) + _function(
        f"@flushed(%a: {_SUMS}) -> {_SUMS}", flushed
    )


def _flush(body: _Body, value: str, least: str) -> None:
    """Returns ``value``, or zero of its sign in lanes whose magnitude is below ``least`` (bits of an f32)."""
    bits = body.op(f"arith.bitcast {value} : {_SUMS} to {_WORDS}")
    magnitude = body.op(f"arith.andi {bits}, {body.op(f'arith.constant dense<0x7FFFFFFF> : {_WORDS}')} : {_WORDS}")
    sign = body.op(f"arith.andi {bits}, {body.op(f'arith.constant dense<0x80000000> : {_WORDS}')} : {_WORDS}")
    limit = body.op(f"arith.constant dense<{least}> : {_WORDS}")
    small = body.op(f"arith.cmpi ult, {magnitude}, {limit} : {_WORDS}")
    kept = body.op(f"arith.select {small}, {sign}, {bits} : vector<16xi1>, {_WORDS}")
    body.lines.append(f"  return {body.op(f'arith.bitcast {kept} : {_WORDS} to {_SUMS}')} : {_SUMS}")


def _halves(body: _Body, pairs: str) -> tuple[str, str]:
    """The even and the odd numbers of 16 pairs as f32, denormals as zero."""
    sixteen = body.op(f"arith.constant dense<16> : {_WORDS}")
    upper = body.op(f"arith.constant dense<0xFFFF0000> : {_WORDS}")
    bits = (body.op(f"arith.shli {pairs}, {sixteen} : {_WORDS}"), body.op(f"arith.andi {pairs}, {upper} : {_WORDS}"))
    wide = [body.op(f"arith.bitcast {half} : {_WORDS} to {_SUMS}") for half in bits]
    even, odd = (body.op(f"func.call @flushed({value}) : ({_SUMS}) -> {_SUMS}") for value in wide)
    return even, odd


def _fma(body: _Body, a: str, b: str, c: str) -> str:
    return body.op(f"func.call @fma({a}, {b}, {c}) : ({_SUMS}, {_SUMS}, {_SUMS}) -> {_SUMS}")


def _narrow(lanes: int) -> str:
    body, words = _Body(), f"vector<{lanes}xi32>"

    def constant(value: str) -> str:
        return body.op(f"arith.constant dense<{value}> : {words}")

    def binary(op: str, a: str, b: str) -> str:
        return body.op(f"arith.{op} {a}, {b} : {words}")

    bits = body.op(f"arith.bitcast %a : vector<{lanes}xf32> to {words}")
    sixteen, magnitude = constant("16"), binary("andi", bits, constant("0x7FFFFFFF"))
    odd = binary("andi", binary("shrui", bits, sixteen), constant("1"))
    rounded = binary("addi", binary("addi", bits, constant("0x7FFF")), odd)
    choices = (
        (f"arith.cmpi ult, {magnitude}, {constant('0x00800000')}", binary("andi", bits, constant("0x80000000"))),
        (f"arith.cmpi ugt, {magnitude}, {constant('0x7F800000')}", binary("ori", bits, constant("0x00400000"))),
    )
    for condition, value in choices:
        chosen = body.op(f"{condition} : {words}")
        rounded = body.op(f"arith.select {chosen}, {value}, {rounded} : vector<{lanes}xi1>, {words}")
    half = body.op(f"arith.trunci {binary('shrui', rounded, sixteen)} : {words} to vector<{lanes}xi16>")
    result = body.op(f"arith.bitcast {half} : vector<{lanes}xi16> to vector<{lanes}xbf16>")
    body.lines.append(f"  return {result} : vector<{lanes}xbf16>")
    return _function(f"@narrow{lanes}(%a: vector<{lanes}xf32>) -> vector<{lanes}xbf16>", body)


def _dpbf16ps() -> str:
    body = _Body()
    words = [body.op(f"vector.bitcast {name} : {_PAIRS} to {_WORDS}") for name in ("%a", "%b")]
    (a_even, a_odd), (b_even, b_odd) = (_halves(body, value) for value in words)
    total = _fma(body, a_even, b_even, _fma(body, a_odd, b_odd, "%c"))
    body.lines.append(f"  return {total} : {_SUMS}")
    return _function(f"@dpbf16ps(%c: {_SUMS}, %a: {_PAIRS}, %b: {_PAIRS}) -> {_SUMS}", body)


def _tdpbf16ps() -> str:
    """Return the product of tiles: a call of ``@row_of_sums`` for each row, as LLVM takes long for them side by side.

    Rows of A beyond the shape and pairs beyond it are zero, so that all 16 of each can be taken.
    """
    body = _Body()
    result = "%c"
    for m in range(_ROWS):
        row = body.op(f"vector.extract %a[{m}] : {_WORDS} from {_TILE}")
        before = body.op(f"vector.extract %c[{m}] : {_WORDS} from {_TILE}")
        after = body.op(f"func.call @row_of_sums({before}, {row}, %b) : ({_WORDS}, {_WORDS}, {_TILE}) -> {_WORDS}")
        result = body.op(f"vector.insert {after}, {result}[{m}] : {_WORDS} into {_TILE}")
    body.lines.append(f"  return {result} : {_TILE}")
    signature = f"@tdpbf16ps(%m: i16, %n: i16, %k: i16, %c: {_TILE}, %a: {_TILE}, %b: {_TILE}) -> {_TILE}"
    return _row_of_sums() + _function(signature, body)


def _row_of_sums() -> str:
    """``@row_of_sums(c, a, b)``: a row of the destination, plus a row of A times all of B."""
    body = _Body()
    even = odd = body.op(f"arith.constant dense<0.0> : {_SUMS}")
    one = body.op(f"arith.constant dense<1.0> : {_SUMS}")
    for k in range(_LANES):
        number = body.op(f"vector.extract %a[{k}] : i32 from {_WORDS}")
        a_even, a_odd = _halves(body, body.op(f"vector.broadcast {number} : i32 to {_WORDS}"))
        b_even, b_odd = _halves(body, body.op(f"vector.extract %b[{k}] : {_WORDS} from {_TILE}"))
        even, odd = _fma(body, a_even, b_even, even), _fma(body, a_odd, b_odd, odd)
    both = _fma(body, even, one, odd)
    after = _fma(body, both, one, body.op(f"arith.bitcast %c : {_WORDS} to {_SUMS}"))
    body.lines.append(f"  return {body.op(f'arith.bitcast {after} : {_SUMS} to {_WORDS}')} : {_WORDS}")
    return _function(f"@row_of_sums(%c: {_WORDS}, %a: {_WORDS}, %b: {_TILE}) -> {_WORDS}", body)


def _tilezero() -> str:
    body = _Body()
    zero = body.op(f"arith.constant dense<0> : {_TILE}")
    body.lines.append(f"  return {zero} : {_TILE}")
    return _function(f"@tilezero(%rows: i16, %bytes: i16) -> {_TILE}", body)


def _masks(body: _Body) -> tuple[str, list[str]]:
    """Lanes within the bytes of a row, and for each row whether the tile has it: as masks of 16 lanes."""
    lanes = body.op(f"arith.constant dense<[{', '.join(map(str, range(_LANES)))}]> : {_WORDS}")
    four = body.op("arith.constant 4 : i16")
    width = body.op(f"arith.divui %bytes, {four} : i16")
    wide = body.op(f"vector.broadcast {body.op(f'arith.extui {width} : i16 to i32')} : i32 to {_WORDS}")
    inside = body.op(f"arith.cmpi slt, {lanes}, {wide} : {_WORDS}")
    masks: list[str] = []
    for row in range(_ROWS):
        number = body.op(f"arith.constant {row} : i16")
        exists = body.op(f"arith.cmpi slt, {number}, %rows : i16")
        spread = body.op(f"vector.broadcast {exists} : i1 to vector<16xi1>")
        masks.append(body.op(f"arith.andi {inside}, {spread} : vector<16xi1>"))
    return inside, masks


def _row_pointer(body: _Body, row: int) -> str:
    distance = body.op(f"arith.muli %stride, {body.op(f'arith.constant {row} : i64')} : i64")
    return body.op(f"llvm.getelementptr %at[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")


def _tileloadd64() -> str:
    body = _Body()
    zero = body.op(f"arith.constant dense<0> : {_WORDS}")
    tile = body.op(f"arith.constant dense<0> : {_TILE}")
    for row, mask in enumerate(_masks(body)[1]):
        loaded = body.op(
            f"llvm.intr.masked.load {_row_pointer(body, row)}, {mask}, {zero} {{alignment = 1 : i32}} : "
            f"(!llvm.ptr, vector<16xi1>, {_WORDS}) -> {_WORDS}"
        )
        tile = body.op(f"vector.insert {loaded}, {tile}[{row}] : {_WORDS} into {_TILE}")
    body.lines.append(f"  return {tile} : {_TILE}")
    return _function(f"@tileloadd64(%rows: i16, %bytes: i16, %at: !llvm.ptr, %stride: i64) -> {_TILE}", body)


def _tilestored64() -> str:
    body = _Body()
    for row, mask in enumerate(_masks(body)[1]):
        value = body.op(f"vector.extract %tile[{row}] : {_WORDS} from {_TILE}")
        body.lines.append(
            f"  llvm.intr.masked.store {value}, {_row_pointer(body, row)}, {mask} {{alignment = 1 : i32}} : "
            f"{_WORDS}, vector<16xi1> into !llvm.ptr"
        )
    body.lines.append("  return")
    return _function(f"@tilestored64(%rows: i16, %bytes: i16, %at: !llvm.ptr, %stride: i64, %tile: {_TILE})", body)


_MODELS = {
    "dpbf16ps": _dpbf16ps,
    "tdpbf16ps": _tdpbf16ps,
    "tileloadd64": _tileloadd64,
    "tilestored64": _tilestored64,
    "tilezero": _tilezero,
}
