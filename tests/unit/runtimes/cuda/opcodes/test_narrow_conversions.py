"""cvt of the types of 8 bits and of tf32 against ml_dtypes and single numbers; set, and hints that change nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn, float8_e5m2

from tests.unit.runtimes.cuda.number_reference import as_array, decode, operands
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

Array = np.ndarray[Any, Any]
TYPES: dict[str, tuple[Any, float]] = {"e4m3": (float8_e4m3fn, 448.0), "e5m2": (float8_e5m2, 57344.0)}


def eighth(values: Array, kind: str, relu: bool) -> Array:
    """The bits of f32 values in 8 bits: to nearest, the largest for what is too large."""
    dtype, largest = TYPES[kind]
    with np.errstate(all="ignore"):
        bits = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
    bits = np.where(relu & np.signbit(values), np.uint8(0), bits)
    return np.where(np.isnan(values), np.uint8(0x7F), bits)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_pairs_of_eight_bits(kind: str, relu: bool) -> None:
    (column,) = operands(["f32"], 2000)
    codes = np.arange(0x7B, dtype=np.uint8)
    exact = codes.view(TYPES[kind][0]).astype(np.float32)
    middles = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([exact, middles, np.nextafter(middles, np.float32(0)), -middles, exact * np.float32(1.01)])
    values = np.concatenate([as_array(column, "f32").view(np.float32), near.astype(np.float32)])
    other = values[::-1].copy()
    text = f"cvt.rn.satfinite{'.relu' if relu else ''}.{kind}x2.f32 %d0, %a0, %a1;"
    inputs = [("f32", values.view(np.uint32)), ("f32", other.view(np.uint32))]
    (found,) = run_instructions(text, inputs, ["b16"])
    assert (found >> 8 == eighth(values, kind, relu)).all()
    assert (found & 0xFF == eighth(other, kind, relu)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_pairs_of_eight_bits_and_halves(kind: str) -> None:
    (column,) = operands(["f16"], 2000)
    halves = as_array(column, "f16")[: len(column) // 2 * 2]
    text = f"cvt.rn.satfinite.{kind}x2.f16x2 %d0, %a0;"
    (found,) = run_instructions(text, [("b32", halves.view(np.uint32))], ["b16"])
    assert (found.view(np.uint8) == eighth(halves.view(np.float16).astype(np.float32), kind, False)).all()
    codes = np.arange(256, dtype=np.uint8)
    pairs = np.stack([codes, codes[::-1]], -1).view(np.uint16).reshape(-1)
    plain, relu = run_instructions(
        f"cvt.rn.f16x2.{kind}x2 %d0, %a0; cvt.rn.relu.f16x2.{kind}x2 %d1, %a0;", [("b16", pairs)], ["b32", "b32"]
    )
    values = pairs.view(np.uint8).view(TYPES[kind][0]).astype(np.float16)
    bits = np.where(np.isnan(values), np.uint16(0x7FFF), values.view(np.uint16))
    assert (plain.view(np.uint16) == bits).all()
    zero = np.signbit(values) & ~np.isnan(values)
    assert (relu.view(np.uint16) == np.where(zero, np.uint16(0), bits)).all()


def tf32(bits: int, mode: str) -> int:
    value = decode(bits, "f32")
    if math.isnan(value):
        return 0x7FFFFFFF
    if math.isinf(value):
        return bits
    unit = Fraction(1 << 13)
    size, rest = divmod(Fraction(bits & 0x7FFFFFFF), unit)  # bits of one sign are in the order of their values
    up = rest * 2 > unit or (rest * 2 == unit and (mode == "rna" or size % 2 == 1))
    return (bits & 1 << 31) | (int(size) + (up and mode != "rz")) << 13


def test_tf32() -> None:
    (column,) = operands(["f32"], 2000)
    column += [0x3F801000, 0x3F803000, 0x3F800FFF, 0xBF801000, 0x7F7FFFFF, 0x7F7FF000]
    modes = ["rna", "rn", "rz"]
    text = " ".join(f"cvt.{mode}.tf32.f32 %d{number}, %a0;" for number, mode in enumerate(modes))
    text += " cvt.rna.satfinite.tf32.f32 %d3, %a0; cvt.rn.relu.tf32.f32 %d4, %a0;"
    found = run_instructions(text, [("f32", as_array(column, "f32"))], ["b32"] * 5)
    for number, mode in enumerate(modes):
        assert found[number].tolist() == [tf32(bits, mode) for bits in column]
    assert found[3][column.index(0x7F7FFFFF)] == 0x7F7FE000
    negative = [bits >> 31 and not math.isnan(decode(bits, "f32")) for bits in column]
    assert found[4].tolist() == [0 if sign else tf32(bits, "rn") for bits, sign in zip(column, negative, strict=True)]


def test_set_gives_ones_or_all_bits() -> None:
    columns = operands(["f32", "f32"], 50)
    inputs = [("f32", as_array(column, "f32")) for column in columns]
    text = "set.lt.u32.f32 %d0, %a0, %a1; set.geu.f32.f32 %d1, %a0, %a1; set.nan.ftz.s32.f32 %d2, %a0, %a1;"
    less, not_less, nan = run_instructions(text, inputs, ["b32"] * 3)
    for row, (x, y) in enumerate(zip(*columns, strict=True)):
        a, b = decode(x, "f32"), decode(y, "f32")
        assert less[row] == (0xFFFFFFFF if a < b else 0)
        assert not_less[row] == (0 if a < b else 0x3F800000)
        assert nan[row] == (0xFFFFFFFF if math.isnan(a) or math.isnan(b) else 0)
    integers = operands(["s32", "s32"], 50)
    (found,) = run_instructions(
        "set.lt.u32.s32 %d0, %a0, %a1;", [("s32", as_array(column, "s32")) for column in integers], ["b32"]
    )
    assert found.tolist() == [
        0xFFFFFFFF if (a ^ 1 << 31) < (b ^ 1 << 31) else 0 for a, b in zip(*integers, strict=True)
    ]


@pytest.mark.parametrize(("kind", "one"), [("f16", 0x3C00), ("bf16", 0x3F80)])
def test_set_of_pairs(kind: str, one: int) -> None:
    columns = operands([kind] * 2, 100)
    packed = [[low | high << 16 for low, high in zip(column, reversed(column), strict=True)] for column in columns]
    text = f"set.le.{kind}x2.{kind}x2 %d0, %a0, %a1;"
    (found,) = run_instructions(text, [("b32", as_array(column, "b32")) for column in packed], ["b32"])
    low = [one if decode(a, kind) <= decode(b, kind) else 0 for a, b in zip(*columns, strict=True)]
    assert found.tolist() == [x | y << 16 for x, y in zip(low, reversed(low), strict=True)]


def test_hints_change_nothing() -> None:
    text = """{ .reg .b64 %policy; .reg .b64 %of; ld.param.u64 %of, [in0]; mad.wide.u32 %of, %i0, 4, %of;
    createpolicy.fractional.L2::evict_last.b64 %policy, 1.0; prefetch.global.L2 [%of]; prefetchu.L1 [%of];
    ld.global.L1::evict_last.L2::cache_hint.b32 %d0, [%of], %policy; griddepcontrol.wait;
    st.global.L1::no_allocate.L2::cache_hint.b32 [%of], %d0, %policy;
    red.global.add.L2::cache_hint.u32 [%of], 1, %policy;
    atom.global.add.L2::cache_hint.u32 %d1, [%of], 1, %policy; griddepcontrol.launch_dependents; }"""
    words = np.arange(64, dtype=np.uint32)
    found = run_instructions(text, [("b32", words)], ["b32", "b32"])
    assert (found[0] == words).all() and (found[1] == words + 1).all()
