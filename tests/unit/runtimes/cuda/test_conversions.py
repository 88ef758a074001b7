"""cvt between all types, with every rounding, against exact rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from tests.unit.runtimes.cuda.number_reference import (
    FORMATS,
    as_array,
    bits_of,
    decode,
    edge_values,
    encode,
    flushed,
    is_nan,
    random_bits,
    signed,
)
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

INTEGERS = [f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64)]
MODES = ["rn", "rz", "rm", "rp"]
INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def run(instructions: list[str], kind: str, values: list[int], results: list[str]) -> list[list[int]]:
    """Runs conversions of the same values to ``results``; 8 bits lie in registers of 16."""
    text = " ".join(f"{instruction} %d{number}, %a0;" for number, instruction in enumerate(instructions))
    found = run_instructions(text, [(kind, as_array(values, kind))], results)
    return [part.tolist() for part in found]


def check(of: str, values: list[int], wanted: dict[str, tuple[str, list[int]]]) -> None:
    """Compares conversions of the same values; ``wanted`` has the type and the bits that each instruction gives."""
    found = run(list(wanted), of, values, [to for to, _ in wanted.values()])
    for result, (instruction, (_, expected)) in zip(found, wanted.items(), strict=True):
        assert result == expected, instruction


def integer_value(bits: int, kind: str) -> int:
    return signed(bits, bits_of(kind)) if kind[0] == "s" else bits


def limits(kind: str) -> tuple[int, int]:
    bits = bits_of(kind)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


@pytest.mark.parametrize("of", INTEGERS)
def test_between_integers(of: str) -> None:
    values = edge_values(of) + random_bits(of, 100)
    whole = [integer_value(bits, of) for bits in values]
    wanted: dict[str, tuple[str, list[int]]] = {}
    for to in INTEGERS:
        mask = (1 << bits_of(to)) - 1
        wanted[f"cvt.{to}.{of}"] = to, [value & mask for value in whole]
        low, high = limits(to)
        if limits(of)[0] < low or limits(of)[1] > high:  # .sat is allowed only where it can do something
            wanted[f"cvt.sat.{to}.{of}"] = to, [max(low, min(high, value)) & mask for value in whole]
    check(of, values, wanted)


def test_narrow_integers_in_wide_registers() -> None:
    """A narrow source is the low part of its register; a narrow result fills its register with its sign."""
    values = edge_values("u64") + random_bits("u64", 100)
    text = "cvt.s8.s64 %d0, %a0; cvt.u16.u8 %d1, %a0; cvt.s64.s8 %d2, %a0; cvt.u64.u16 %d3, %a0; cvt.u8.u64 %d4, %a0;"
    found = run_instructions(text, [("u64", as_array(values, "u64"))], ["s32", "u32", "s64", "u64", "u64"])
    for row, value in enumerate(values):
        expected = [signed(value & 255, 8) & 0xFFFFFFFF, value & 255, signed(value & 255, 8) & (1 << 64) - 1]
        assert [int(part[row]) for part in found] == [*expected, value & 0xFFFF, value & 255]


@pytest.mark.parametrize("of", FORMATS)
def test_from_floats_to_integers(of: str) -> None:
    values = edge_values(of) + random_bits(of, 150)
    targets = INTEGERS if of != "bf16" else [to for to in INTEGERS if bits_of(to) > 8]  # there are no others
    for bound in {bound for to in targets for bound in (*limits(to), 0)}:
        around = [bound + offset for offset in (-1, 0, 1)] + [Fraction(2 * bound + half, 2) for half in (-1, 1, 3)]
        values += [encode(Fraction(value), of) for value in around]

    def expected(bits: int, to: str, mode: str) -> int:
        value = decode(bits, of)
        low, high = limits(to)
        if math.isnan(value):
            return 1 << (bits_of(to) - 1) if of == "f64" or bits_of(to) == 64 else 0
        if math.isinf(value):
            return (high if value > 0 else low) & ((1 << bits_of(to)) - 1)
        return max(low, min(high, INTEGRAL[mode](value))) & ((1 << bits_of(to)) - 1)

    wanted: dict[str, tuple[str, list[int]]] = {}
    for to in targets:
        for mode in INTEGRAL:
            wanted[f"cvt.{mode}.{to}.{of}"] = to, [expected(bits, to, mode) for bits in values]
        if of == "f32":
            wanted[f"cvt.rpi.ftz.{to}.f32"] = to, [expected(flushed(bits), to, "rpi") for bits in values]
    check(of, values, wanted)


@pytest.mark.parametrize("of", INTEGERS)
def test_from_integers_to_floats(of: str) -> None:
    values = edge_values(of) + random_bits(of, 200)
    wanted: dict[str, tuple[str, list[int]]] = {}
    for mantissa, _ in FORMATS.values():
        for shift in range(mantissa, bits_of(of) - 2):  # next to ties of every size
            tie = (3 << shift) + (1 << (shift - mantissa))
            values += [(tie + offset) & ((1 << bits_of(of)) - 1) for offset in (-1, 0, 1)]
    for to in FORMATS:
        if to == "bf16" and bits_of(of) == 8:
            continue  # there is none
        for mode in MODES if to != "bf16" else ["rn"]:
            bits = [encode(Fraction(integer_value(value, of)), to, mode) for value in values]
            wanted[f"cvt.{mode}.{to}.{of}"] = to, bits
    check(of, values, wanted)


@pytest.mark.parametrize("of", ["f32", "f64"])
@pytest.mark.parametrize("to", ["f16", "bf16", "f32"])
def test_narrowing(of: str, to: str) -> None:
    if of == to:
        return
    values = edge_values(of) + random_bits(of, 400)
    for word in edge_values(to) + random_bits(to, 300):  # ties of the narrow type, and their neighbours
        value = decode(word, to)
        if math.isfinite(value):
            tie = encode(
                (Fraction(value) + Fraction(decode(word ^ 1, to) if math.isfinite(decode(word ^ 1, to)) else 0)) / 2, of
            )
            values += [tie, tie + 1, max(tie - 1, 0)]
    modes = MODES if to == "f32" else ["rn", "rz"] if of == "f32" or to == "f16" else ["rn", "rz", "rm", "rp"]
    check(
        of,
        values,
        {f"cvt.{mode}.{to}.{of}": (to, [encode(decode(bits, of), to, mode) for bits in values]) for mode in modes},
    )


@pytest.mark.parametrize(
    ("of", "to"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")]
)
def test_widening(of: str, to: str) -> None:
    values = edge_values(of) + random_bits(of, 400)
    for bits, found in zip(values, run([f"cvt.{to}.{of}"], of, values, [to])[0], strict=True):
        value = decode(bits, of)
        assert is_nan(found, to) if math.isnan(value) else found == encode(value, to)


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_to_whole_floats(kind: str) -> None:
    values = edge_values(kind) + random_bits(kind, 400)
    sign = 1 << (bits_of(kind) - 1)
    columns = run([f"cvt.{mode}.{kind}.{kind}" for mode in INTEGRAL], kind, values, [kind] * 4)
    for column, whole in zip(columns, INTEGRAL.values(), strict=True):
        for bits, found in zip(values, column, strict=True):
            value = decode(bits, kind)
            if math.isnan(value):
                assert is_nan(found, kind)
            elif math.isinf(value):
                assert found == bits
            else:
                assert found == encode(Fraction(whole(value)), kind) | bits & sign


def test_saturation_and_flushing() -> None:
    values = edge_values("f32") + random_bits("f32", 400)
    clamped = [encode(min(decode(bits, "f32"), 1.0), "f32") if decode(bits, "f32") > 0 else 0 for bits in values]
    assert run(["cvt.sat.f32.f32"], "f32", values, ["f32"]) == [clamped]
    to_half = [encode(decode(bits, "f32"), "f16") for bits in clamped]
    assert run(["cvt.rn.sat.f16.f32"], "f32", values, ["f16"]) == [to_half]
    wide = edge_values("f64") + random_bits("f64", 100) + [encode(decode(bits, "f32"), "f64") for bits in values]
    flushed_result = [flushed(encode(decode(bits, "f64"), "f32")) for bits in wide]
    assert run(["cvt.rn.ftz.f32.f64"], "f64", wide, ["f32"]) == [flushed_result]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_two_floats_to_a_pair(kind: str, mode: str, relu: str) -> None:
    values = edge_values("f32") + random_bits("f32", 400)
    other = values[::-1]

    def half(bits: int) -> int:
        found = encode(decode(bits, "f32"), kind, mode)
        return 0 if relu and found >> 15 else found

    inputs = [("f32", as_array(values, "f32")), ("f32", as_array(other, "f32"))]
    (found,) = run_instructions(f"cvt.{mode}{relu}.{kind}x2.f32 %d0, %a0, %a1;", inputs, ["b32"])
    assert found.tolist() == [half(a) << 16 | half(b) for a, b in zip(values, other, strict=True)]
