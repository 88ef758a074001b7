"""Quotients, reciprocals, roots and products rounded in a direction, against exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.unit.runtimes.cuda.number_reference import (
    FORMATS,
    as_array,
    decode,
    encode,
    flushed,
    is_nan,
    operands,
)
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

OPERATIONS: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
    "mul": (2, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c),
}


def run(instruction: str, kind: str, columns: list[list[int]]) -> list[int]:
    names = ", ".join(f"%a{number}" for number in range(len(columns)))
    inputs = [(kind, as_array(column, kind)) for column in columns]
    return run_instructions(f"{instruction} %d0, {names};", inputs, [kind])[0].tolist()


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_finite_results(name: str, kind: str, mode: str) -> None:
    count, function = OPERATIONS[name]
    columns = operands([kind] * count, 500)
    found = run(f"{name}.{mode}.{kind}", kind, columns)
    compared = 0
    for row, result in zip(zip(*columns, strict=True), found, strict=True):
        values = [decode(word, kind) for word in row]
        if not all(map(math.isfinite, values)) or (name in ("div", "rcp") and values[-1] == 0):
            continue
        exact = function(*map(Fraction, values))
        negative = math.prod(math.copysign(1, value) for value in values[: 2 if name == "fma" else count]) < 0
        if name == "fma" and negative != (math.copysign(1, values[2]) < 0):
            negative = mode == "rm"
        assert result == encode(exact, kind, mode, negative), (values, exact)
        compared += 1
    assert compared > 500


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_roots(kind: str, mode: str) -> None:
    columns = operands([kind], 1000)
    mantissa = FORMATS[kind][0]
    for bits, result in zip(columns[0], run(f"sqrt.{mode}.{kind}", kind, columns), strict=True):
        value = decode(bits, kind)
        if not math.isfinite(value) or value <= 0:
            assert is_nan(result, kind) == (value < 0 or math.isnan(value))
            continue
        # The root of a multiple of 4**-n, to more bits than a result has; what is cut off counts as a little more.
        scale = 2 * mantissa + 1100
        shifted = Fraction(value) * Fraction(4) ** scale
        assert shifted.denominator == 1
        root = math.isqrt(shifted.numerator)
        rest = Fraction(1, 2) if root * root != shifted.numerator else Fraction(0)
        assert result == encode((root + rest) / Fraction(2) ** scale, kind, mode)


@pytest.mark.parametrize("name", ["div", "rcp", "sqrt"])
def test_special_values_are_those_of_rounding_to_nearest(name: str) -> None:
    columns = operands(["f32"] * (2 if name == "div" else 1), 10)
    near, down = (run(f"{name}.{mode}.f32", "f32", columns) for mode in ("rn", "rm"))
    for row, a, b in zip(zip(*columns, strict=True), near, down, strict=True):
        if not all(math.isfinite(decode(word, "f32")) for word in row) or (row[-1] << 1 & 0xFFFFFFFF) == 0:
            assert a == b


def test_subnormal_values_are_flushed() -> None:
    columns = operands(["f32", "f32"], 300)
    found = run("div.rz.ftz.f32", "f32", columns)
    plain = run("div.rz.f32", "f32", [[flushed(word) for word in column] for column in columns])
    assert found == [flushed(word) for word in plain]
