"""Integer arithmetic of bodies in Triton, as the other targets have it.

Narrow integers are computed in 32 bits and cut off. Division never traps: ``x / 0`` is 0, ``x % 0`` is x, ``x / -1`` is
``-x`` wrapped around. A float beyond an integer type of 32 or 64 bits, or NaN, becomes its smallest number; conversions
to 8 and 16 bits go through 32.
"""

from __future__ import annotations

from collections.abc import Sequence

WIDTHS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}

_SAFE = "tl.where(({1} == 0) | ({1} == -1), 1, {1})"
_GUARDED = "tl.where({1} == 0, 0, tl.where({1} == -1, 0 - {0}, {2}))"
_QUOTIENT = f"({{0}} // {_SAFE})"
_REST = f"({{0}} % {_SAFE})"
_SIGNED = {
    "arith.divsi": _GUARDED.replace("{2}", _QUOTIENT),
    "arith.floordivsi": _GUARDED.replace(
        "{2}", f"{_QUOTIENT} - (({_REST} != 0) & (({_REST} ^ {{1}}) < 0)).to({{type}})"
    ),
    "arith.ceildivsi": _GUARDED.replace(
        "{2}", f"{_QUOTIENT} + (({_REST} != 0) & (({_REST} ^ {{1}}) >= 0)).to({{type}})"
    ),
    "arith.remsi": f"tl.where({{1}} == 0, {{0}}, {_REST})",
    "arith.addi": "{0} + {1}",
    "arith.subi": "{0} - {1}",
    "arith.muli": "{0} * {1}",
    "arith.andi": "{0} & {1}",
    "arith.ori": "{0} | {1}",
    "arith.xori": "{0} ^ {1}",
    "arith.maxsi": "tl.maximum({0}, {1})",
    "arith.minsi": "tl.minimum({0}, {1})",
    "arith.shli": "{0} << {1}",
    "arith.shrsi": "{0} >> {1}",
    "math.absi": "tl.where({0} < 0, 0 - {0}, {0})",
}
"""Of signed numbers, or of bits alone; ``{type}`` is the type in which they are computed."""
_PLAIN = (
    "arith.addi",
    "arith.subi",
    "arith.muli",
    "arith.andi",
    "arith.ori",
    "arith.xori",
    "arith.maxsi",
    "arith.minsi",
)
"""What narrow types have, too."""
_UNSIGNED = {
    "arith.divui": "tl.where({1} == 0, 0, {0} // tl.where({1} == 0, 1, {1}))",
    "arith.remui": "tl.where({1} == 0, {0}, {0} % tl.where({1} == 0, 1, {1}))",
    "arith.ceildivui": "tl.where({1} == 0, 0, {0} // tl.where({1} == 0, 1, {1})"
    " + ({0} % tl.where({1} == 0, 1, {1}) != 0).to({type}))",
    "arith.shrui": "{0} >> {1}",
    "arith.maxui": "tl.maximum({0}, {1})",
    "arith.minui": "tl.minimum({0}, {1})",
}
_BITS = {
    "math.ctlz": "libdevice.clz({0}) - {spare}",
    "math.cttz": "tl.where({0} == 0, {width}, libdevice.ffs({0}) - 1)",
    "math.ctpop": "libdevice.popc({0})",
}
"""Of bits without a sign; ``{spare}`` are those that a narrow type has too many when it is computed."""
_BOOLEAN = {
    "arith.addi": "{0} ^ {1}", "arith.subi": "{0} ^ {1}", "arith.muli": "{0} & {1}", "arith.andi": "{0} & {1}",
    "arith.ori": "{0} | {1}", "arith.xori": "{0} ^ {1}", "arith.maxui": "{0} | {1}", "arith.minui": "{0} & {1}",
    "arith.maxsi": "{0} & {1}", "arith.minsi": "{0} | {1}",
}  # fmt: skip
"""A boolean is a bit: as a signed number -1 and 0."""


def integer_text(name: str, source: str, texts: Sequence[str]) -> str | None:
    """Returns an op over integers of one type, of that type; None where there is none of that name or type."""
    if source == "i1":
        return _BOOLEAN[name].format(*texts) if name in _BOOLEAN else None
    if source not in WIDTHS:
        return None
    width = WIDTHS[source]
    wide = max(32, width)
    back = f".to(tl.int{width})"
    if name in _PLAIN:
        return _SIGNED[name].format(*texts)
    if name in _SIGNED:
        sides = texts if width == wide else [f"{text}.to(tl.int32)" for text in texts]
        text = _SIGNED[name].format(*sides, type=f"tl.int{wide}")
        return text if width == wide else f"({text}){back}"
    if name in _UNSIGNED:
        sides = [f"{text}.to(tl.uint{width}, bitcast=True).to(tl.uint{wide})" for text in texts]
        text = _UNSIGNED[name].format(*sides, type=f"tl.uint{wide}")
        return f"({text}).to(tl.uint{width}).to(tl.int{width}, bitcast=True)"
    if name in _BITS:
        sides = texts if width == wide else [f"{text}.to(tl.uint{width}, bitcast=True).to(tl.int32)" for text in texts]
        return f"({_BITS[name].format(*sides, width=width, spare=wide - width)}){back}"
    return None


def to_integer(name: str, source: str, result: str, text: str) -> str | None:
    """Returns a float as an integer, cut off towards 0; ``source`` is f32 or f64."""
    if source not in ("f32", "f64") or result not in WIDTHS:
        return None
    width = WIDTHS[result]
    if name == "arith.fptoui" and width == 64:
        return f"{text}.to(tl.uint64).to(tl.int64, bitcast=True)"
    # An unsigned number of 32 bits is one of 64 with a sign.
    through = 64 if name == "arith.fptoui" and width == 32 else max(32, width)
    limit = f"tl.full([], {float(1 << (through - 1))}, tl.float{source[1:]})"
    fits = f"(tl.abs({text}) < {limit})"
    whole = f"tl.where({fits}, {text}, 0).to(tl.int{through})"
    smallest = f"tl.full([], {-(1 << (through - 1))}, tl.int{through})"
    converted = f"tl.where({fits}, {whole}, {smallest})"
    return converted if through == width else f"{converted}.to(tl.int{width})"
