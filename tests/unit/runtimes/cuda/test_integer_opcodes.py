"""Integer arithmetic, with and without carries, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.runtimes.cuda.number_reference import as_array, bits_of, mapped, operands, signed
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

KINDS = ["u16", "s16", "u32", "s32", "u64", "s64"]
SIGNED = ["s16", "s32", "s64"]


def truncating_quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - truncating_quotient(a, b) * b


OPERATIONS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "mad.lo": lambda a, b, c: a * b + c,
    "div": truncating_quotient,
    "rem": remainder,
    "min": min,
    "max": max,
}


def check(instruction: str, kinds: list[str], result: str, function: Callable[..., int]) -> None:
    """Compares ``instruction`` on operands of ``kinds`` with a function of their values."""
    columns = operands(kinds)
    arguments = ", ".join(f"%a{number}" for number in range(len(kinds)))
    inputs = [(kind, as_array(column, kind)) for kind, column in zip(kinds, columns, strict=True)]
    (found,) = run_instructions(f"{instruction} %d0, {arguments};", inputs, [result])

    def value(*bits: int) -> int:
        values = [
            signed(word, bits_of(kind)) if kind[0] == "s" else word for word, kind in zip(bits, kinds, strict=True)
        ]
        return function(*values) & ((1 << bits_of(result)) - 1)

    assert found.tolist() == mapped(value, columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic(name: str, kind: str) -> None:
    check(f"{name}.{kind}", [kind] * (3 if name == "mad.lo" else 2), kind, OPERATIONS[name])


@pytest.mark.parametrize("kind", KINDS)
def test_high_products(kind: str) -> None:
    bits = bits_of(kind)
    check(f"mul.hi.{kind}", [kind, kind], kind, lambda a, b: a * b >> bits)
    check(f"mad.hi.{kind}", [kind] * 3, kind, lambda a, b, c: (a * b >> bits) + c)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind: str) -> None:
    wide = f"{kind[0]}{2 * bits_of(kind)}"
    check(f"mul.wide.{kind}", [kind, kind], wide, lambda a, b: a * b)
    check(f"mad.wide.{kind}", [kind, kind, wide], wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", SIGNED)
def test_one_operand(kind: str) -> None:
    check(f"abs.{kind}", [kind], kind, lambda a: -a if a < 0 else a)
    check(f"neg.{kind}", [kind], kind, lambda a: -a)


@pytest.mark.parametrize("name", ["add", "min", "max"])
@pytest.mark.parametrize("kind", ["u16", "s16"])
def test_pairs_of_integers_are_two_integers(name: str, kind: str) -> None:
    columns = operands([kind, kind])
    (one,) = run_instructions(f"{name}.{kind} %d0, %a0, %a1;", [(kind, as_array(c, kind)) for c in columns], [kind])
    packed = [[low | high << 16 for low, high in zip(c, reversed(c), strict=True)] for c in columns]
    inputs = [("b32", as_array(column, "b32")) for column in packed]
    (found,) = run_instructions(f"{name}.{kind}x2 %d0, %a0, %a1;", inputs, ["b32"])
    halves = one.tolist()
    assert found.tolist() == [low | high << 16 for low, high in zip(halves, reversed(halves), strict=True)]


def test_saturation() -> None:
    def clamped(value: int) -> int:
        return max(-(1 << 31), min((1 << 31) - 1, value))

    check("add.sat.s32", ["s32", "s32"], "s32", lambda a, b: clamped(a + b))
    check("sub.sat.s32", ["s32", "s32"], "s32", lambda a, b: clamped(a - b))
    check("mad.hi.sat.s32", ["s32"] * 3, "s32", lambda a, b, c: clamped((a * b >> 32) + c))


@pytest.mark.parametrize("bits", [32, 64])
def test_sums_of_three_words(bits: int) -> None:
    kind = f"u{bits}"
    columns = operands([kind] * 6)
    inputs = [(kind, as_array(column, kind)) for column in columns]
    mask, words = (1 << bits) - 1, (0, bits, 2 * bits)
    for opcode, sign in (("add", 1), ("sub", -1)):
        text = (
            f"{opcode}.cc.{kind} %d0, %a0, %a3; {opcode}c.cc.{kind} %d1, %a1, %a4; {opcode}c.{kind} %d2, %a2, %a5;"
        )  # fmt: skip
        found = run_instructions(text, inputs, [kind] * 3)
        for row in range(len(columns[0])):
            a, b = (sum(columns[start + word][row] << shift for word, shift in enumerate(words)) for start in (0, 3))
            total = a + sign * b
            assert [int(part[row]) for part in found] == [total >> shift & mask for shift in words]


@pytest.mark.parametrize("bits", [32, 64])
def test_product_of_words_with_carries(bits: int) -> None:
    """mad.lo.cc, madc.hi.cc and addc: a product of two words and a sum of three, as compilers write it."""
    kind = f"u{bits}"
    columns = operands([kind] * 4)
    inputs = [(kind, as_array(column, kind)) for column in columns]
    text = f"mad.lo.cc.{kind} %d0, %a0, %a1, %a2; madc.hi.cc.{kind} %d1, %a0, %a1, %a3; addc.{kind} %d2, 0, 0;"
    found = run_instructions(text, inputs, [kind] * 3)
    for row, (a, b, low, high) in enumerate(zip(*columns, strict=True)):
        total = a * b + low + (high << bits)
        assert [int(part[row]) for part in found] == [
            total >> shift & ((1 << bits) - 1) for shift in (0, bits, 2 * bits)
        ]
