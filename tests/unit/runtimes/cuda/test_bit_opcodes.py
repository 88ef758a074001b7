"""Logic, shifts, bit fields, counts and permutations against Python's integers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.runtimes.cuda.number_reference import as_array, bits_of, mapped, operands, random_bits, signed
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

SHIFTS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1 << 16, (1 << 32) - 1]


def check(
    instruction: str,
    columns: list[tuple[str, list[int]]],
    result: str,
    function: Callable[..., int],
    suffix: str = "",
) -> None:
    arguments = ", ".join(f"%a{number}" for number in range(len(columns)))
    inputs = [(kind, as_array(values, kind)) for kind, values in columns]
    (found,) = run_instructions(f"{instruction} %d0, {arguments}{suffix};", inputs, [result])
    mask = (1 << bits_of(result)) - 1
    assert found.tolist() == mapped(lambda *row: function(*row) & mask, [values for _, values in columns])


def words(kinds: list[str]) -> list[tuple[str, list[int]]]:
    return list(zip(kinds, operands(kinds), strict=True))


def with_shifts(kind: str, shifts: int) -> list[tuple[str, list[int]]]:
    """Words of ``kind``, and as many columns of shifts."""
    count = 600
    column = random_bits(kind, count)
    return [(kind, column)] + [("u32", [random.choice(SHIFTS) for _ in column]) for _ in range(shifts)]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    kind = f"b{bits}"
    check(f"and.{kind}", words([kind, kind]), kind, lambda a, b: a & b)
    check(f"or.{kind}", words([kind, kind]), kind, lambda a, b: a | b)
    check(f"xor.{kind}", words([kind, kind]), kind, lambda a, b: a ^ b)
    check(f"not.{kind}", words([kind]), kind, lambda a: ~a)


def test_logic_of_predicates() -> None:
    a, b = (np.array(column, np.uint8) for column in ([0, 0, 1, 1], [0, 1, 0, 1]))
    text = "and.pred %d0, %a0, %a1; or.pred %d1, %a0, %a1; xor.pred %d2, %a0, %a1; not.pred %d3, %a0;"
    found = run_instructions(text, [("pred", a), ("pred", b)], ["pred"] * 4)
    assert [part.tolist() for part in found] == [(a & b).tolist(), (a | b).tolist(), (a ^ b).tolist(), (1 - a).tolist()]


@pytest.mark.parametrize("table", [0x00, 0x1B, 0x80, 0xCA, 0xE8, 0x96, 0xFF])
def test_any_logic_of_three(table: int) -> None:
    def function(a: int, b: int, c: int) -> int:
        bits = [table >> ((a >> at & 1) * 4 + (b >> at & 1) * 2 + (c >> at & 1)) & 1 for at in range(32)]
        return sum(bit << at for at, bit in enumerate(bits))

    check("lop3.b32", words(["b32"] * 3), "b32", function, f", {table}")


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_beyond_the_width(bits: int) -> None:
    kind = f"b{bits}"
    check(f"shl.{kind}", with_shifts(kind, 1), kind, lambda a, n: a << n if n < bits else 0)
    check(f"shr.u{bits}", with_shifts(kind, 1), kind, lambda a, n: a >> n if n < bits else 0)
    check(f"shr.b{bits}", with_shifts(kind, 1), kind, lambda a, n: a >> n if n < bits else 0)
    check(f"shr.s{bits}", with_shifts(kind, 1), kind, lambda a, n: signed(a, bits) >> min(n, bits))


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode: str) -> None:
    columns = with_shifts("b32", 1)
    columns.insert(1, ("b32", random_bits("b32", 600)))

    def amount(n: int) -> int:
        return n % 32 if mode == "wrap" else min(n, 32)

    check(f"shf.l.{mode}.b32", columns, "b32", lambda a, b, n: ((b << 32 | a) << amount(n)) >> 32)
    check(f"shf.r.{mode}.b32", columns, "b32", lambda a, b, n: (b << 32 | a) >> amount(n))


def extracted(a: int, position: int, length: int, bits: int, is_signed: bool) -> int:
    """The loop of the PTX manual."""
    position, length, top = position & 255, length & 255, bits - 1
    sign = a >> min(position + length - 1, top) & 1 if is_signed and length else 0
    taken = [a >> (position + at) & 1 if at < length and position + at <= top else sign for at in range(bits)]
    return sum(bit << at for at, bit in enumerate(taken))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields_are_extracted(kind: str) -> None:
    bits = bits_of(kind)
    check(f"bfe.{kind}", with_shifts(kind, 2), kind, lambda a, p, n: extracted(a, p, n, bits, kind[0] == "s"))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields_are_inserted(bits: int) -> None:
    kind = f"b{bits}"
    columns = with_shifts(kind, 2)
    columns.insert(1, (kind, random_bits(kind, 600)))

    def function(a: int, b: int, position: int, length: int) -> int:
        for at in range(length & 255):
            place = (position & 255) + at
            if place < bits:
                b = b & ~(1 << place) | (a >> at & 1 if at < bits else 0) << place
        return b

    check(f"bfi.{kind}", columns, kind, function)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits: int) -> None:
    kind = f"b{bits}"
    check(f"popc.{kind}", words([kind]), "u32", int.bit_count)
    check(f"clz.{kind}", words([kind]), "u32", lambda a: bits - a.bit_length())
    check(f"brev.{kind}", words([kind]), kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    check(f"bfind.u{bits}", words([kind]), "u32", lambda a: a.bit_length() - 1)
    check(f"bfind.shiftamt.u{bits}", words([kind]), "u32", lambda a: bits - a.bit_length() if a else -1)

    def of_signed(a: int) -> int:
        value = signed(a, bits)
        return (~value if value < 0 else value).bit_length() - 1

    check(f"bfind.s{bits}", words([kind]), "u32", of_signed)


def test_permutation_of_bytes() -> None:
    def function(a: int, b: int, selector: int) -> int:
        octets = [(b << 32 | a) >> 8 * at & 255 for at in range(8)]
        result = 0
        for number in range(4):
            nibble = selector >> 4 * number & 15
            octet = octets[nibble & 7]
            result |= (255 * (octet >> 7) if nibble & 8 else octet) << 8 * number
        return result

    check("prmt.b32", words(["b32"] * 3), "b32", function)


def test_packing() -> None:
    columns = operands(["b32", "b32"])
    inputs = [("b32", as_array(column, "b32")) for column in columns]
    text = (
        "{ .reg .b16 %h<4>; mov.b64 %d0, {%a0, %a1}; mov.b32 {%h0, %h1}, %a0; mov.b32 {%h2, _}, %a1;"
        " mov.b64 {_, %d1}, %d0; mov.b64 %d2, {%h0, %h1, %h2, %h0}; mov.b32 %d3, {%h1, %h0}; }"
    )
    found = run_instructions(text, inputs, ["b64", "b32", "b64", "b32"])
    for row, (a, b) in enumerate(zip(*columns, strict=True)):
        low, high, other = a & 0xFFFF, a >> 16, b & 0xFFFF
        expected = [a | b << 32, b, low | high << 16 | other << 32 | low << 48, high | low << 16]
        assert [int(part[row]) for part in found] == expected


def test_selection() -> None:
    columns = operands(["b64", "b64"])
    choice = [row % 3 == 0 for row in range(len(columns[0]))]
    inputs = [("b64", as_array(column, "b64")) for column in columns] + [("pred", np.array(choice, np.uint8))]
    (found,) = run_instructions("selp.b64 %d0, %a0, %a1, %a2;", inputs, ["b64"])
    assert found.tolist() == [a if first else b for a, b, first in zip(*columns, choice, strict=True)]
