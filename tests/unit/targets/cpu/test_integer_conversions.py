"""Floats become integers as on x86, though LLVM knows the float: the smallest integer for what does not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lowerkit.targets.cpu.harness import run_kernel_for_test
from lowerkit.targets.cpu.objects.lower import lower_to_llvm_ir
from tests.support.scalar_kernels import unary_plan

NUMBERS = [
    *(0.0, -0.0, 1.9, -1.9, 200.0, -200.0, 40000.0, 1e30, -1e30, math.inf, -math.inf, math.nan),
    *(2.0**31, -(2.0**31), 2.0**31 - 128, -(2.0**31) - 256, 2.0**33, 2.0**63, -(2.0**63), 2.0**64),
]


def _wanted(value: float, bits: int) -> int:
    """The integer of ``bits``, of which those below 32 are the low ones of 32."""
    wide = max(bits, 32)
    fits = math.isfinite(value) and -(2 ** (wide - 1)) <= math.trunc(value) < 2 ** (wide - 1)
    low = (math.trunc(value) if fits else -(2 ** (wide - 1))) % 2**bits
    return low - 2**bits if low >= 2 ** (bits - 1) else low


def _converted(body: str, values: list[float]) -> list[float]:
    x = np.resize(np.asarray(values, np.float32), (-(-len(values) // 16), 16))
    y = np.zeros_like(x)
    run_kernel_for_test(unary_plan(body), [x, y], [*x.shape])
    return y.ravel()[: len(values)].tolist()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("constant", [None, "0xFF800000", "0x7FC00000", "0x4F000000"])
def test_numbers_beyond_the_type(bits: int, constant: str | None) -> None:
    """``constant``: is chosen in place of a zero; LLVM then converts it while it compiles."""
    choice = (
        "%c = arith.addf %x, %z : f32"
        if constant is None
        else f"%k = arith.constant {constant} : f32\n%p = arith.cmpf oeq, %x, %z : f32\n"
        "%c = arith.select %p, %k, %x : f32"
    )
    body = f"%z = arith.constant 0.0 : f32\n{choice}\n%n = arith.fptosi %c : f32 to i{bits}\n"
    body += f"%y = arith.sitofp %n : i{bits} to f32"
    at_zero = 0.0 if constant is None else float(np.frombuffer(bytes.fromhex(constant[2:]), ">f4")[0])
    values = [float(np.float32(number)) for number in NUMBERS]
    wanted = [float(np.float32(_wanted(at_zero if value == 0 else value, bits))) for value in values]
    assert _converted(body, values) == wanted


def _guards(body: str) -> bool:
    return "llvm.fabs" in lower_to_llvm_ir(unary_plan(body).text)


_LOW = "%low = arith.constant -128.0 : f32\n"
_HIGH = "%high = arith.constant 127.0 : f32\n"
_COMPARED = (
    "%a = arith.cmpf ogt, %x, %low : f32\n%b = arith.select %a, %x, %low : f32\n"
    "%c = arith.cmpf olt, %b, %high : f32\n%d = arith.select %c, %b, %high : f32\n"
)
_CLAMPED = "%b = arith.maximumf %x, %low : f32\n%e = arith.minimumf %b, %high : f32\n%d = math.roundeven %e : f32\n"
_CONVERTED = "%n = arith.fptosi %d : f32 to i8\n%y = arith.sitofp %n : i8 to f32"


@pytest.mark.parametrize("limited", [_COMPARED, _CLAMPED])
def test_constant_bounds_need_no_guard(limited: str) -> None:
    assert not _guards(_LOW + _HIGH + limited + _CONVERTED)


@pytest.mark.parametrize(
    ("low", "high", "limited"),
    [
        (_LOW, "%high = arith.constant 3.0e9 : f32\n", _COMPARED),
        ("%low = arith.constant -3.0e9 : f32\n", _HIGH, _CLAMPED),
        (_LOW, _HIGH, _COMPARED.replace("ogt", "olt")),
        (_LOW, _HIGH, _COMPARED.replace("%c, %b, %high", "%c, %high, %b")),
        (_LOW, _HIGH, _COMPARED.replace("%b, %high : f32\n%d", "%x, %high : f32\n%d")),
        (_LOW, _HIGH, "%d = arith.maximumf %x, %low : f32\n"),
    ],
)
def test_other_choices_and_wider_bounds_do(low: str, high: str, limited: str) -> None:
    assert _guards(low + high + limited + _CONVERTED)


def test_guards_of_vectors_compile_too() -> None:
    body = (
        "%v = vector.broadcast %x : f32 to vector<16xf32>\n%h = arith.truncf %v : vector<16xf32> to vector<16xf16>\n"
        "%n = arith.fptosi %h : vector<16xf16> to vector<16xi8>\n"
        "%m = arith.fptosi %v : vector<16xf32> to vector<16xi64>\n"
        "%s = arith.extsi %n : vector<16xi8> to vector<16xi64>\n%t = arith.addi %s, %m : vector<16xi64>\n"
        "%f = arith.sitofp %t : vector<16xi64> to vector<16xf32>\n%y = vector.extract %f[3] : f32 from vector<16xf32>"
    )
    assert _guards(body)
    assert _converted(body, [2.5, 70000.0, math.nan]) == [4.0, 70000.0, float(-(2**63))]
