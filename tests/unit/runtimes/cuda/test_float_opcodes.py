"""Float arithmetic against exact rational numbers, rounded once; special values as the PTX manual has them."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.unit.runtimes.cuda.number_reference import (
    FORMATS,
    NAN,
    as_array,
    bits_of,
    decode,
    encode,
    flushed,
    is_nan,
    mapped,
    operands,
)
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

NARROW = ["f16", "bf16", "f32"]


def run(instruction: str, kind: str, columns: list[list[int]], result: str) -> list[int]:
    arguments = ", ".join(f"%a{number}" for number in range(len(columns)))
    inputs = [(kind, as_array(column, kind)) for column in columns]
    return run_instructions(f"{instruction} %d0, {arguments};", inputs, [result])[0].tolist()


def same(found: list[int], expected: list[int], kind: str) -> bool:
    """Whether bits are equal; any NaN of f64 is as good as another, narrower ones are the one that a card writes."""
    return all(
        a == b or (kind == "f64" and is_nan(a, kind) and is_nan(b, kind)) for a, b in zip(found, expected, strict=True)
    )


def exact(name: str, kind: str, mode: str) -> Callable[..., int]:
    """add, sub, mul or fma on bits, by rational numbers."""

    def function(*bits: int) -> int:
        values = [decode(word, kind) for word in bits]
        if name == "sub":
            values[1] = -values[1]
        first = values[0] * values[1] if name in ("mul", "fma") else values[0]
        last = None if name == "mul" else values[-1]
        if not all(map(math.isfinite, values)):
            if name == "fma" and all(map(math.isfinite, values[:2])):
                first = 0.0  # the product is finite, even where Python's overflows
            return encode(first if last is None else first + last, kind)
        whole = [Fraction(value) for value in values]
        product = whole[0] * whole[1] if name in ("mul", "fma") else whole[0]
        total = product if last is None else product + whole[-1]
        sign = math.copysign(1, values[0]) * (math.copysign(1, values[1]) if name in ("mul", "fma") else 1) < 0
        if last is not None and sign != (math.copysign(1, last) < 0):
            sign = mode == "rm"
        return encode(total, kind, mode, sign)

    return function


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_arithmetic_is_rounded_once(name: str, kind: str) -> None:
    columns = operands([kind] * (3 if name == "fma" else 2), 1500)
    found = run(f"{name}.rn.{kind}", kind, columns, kind)
    assert same(found, mapped(exact(name, kind, "rn"), columns), kind)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("name", "kind"), [("add", "f32"), ("sub", "f32"), ("mul", "f32"), ("fma", "f32"), ("add", "f64"), ("sub", "f64")]
)
def test_arithmetic_in_a_direction(name: str, kind: str, mode: str) -> None:
    columns = operands([kind] * (3 if name == "fma" else 2))
    if kind == "f64":  # sums of f64 that overflow are not rounded in a direction
        columns = [[word if abs(decode(word, kind)) < 1e300 else 1 for word in column] for column in columns]
        columns[1] = [word if a or word else 1 for a, word in zip(columns[0], columns[1], strict=True)]
    found = run(f"{name}.{mode}.{kind}", kind, columns, kind)
    expected = mapped(exact(name, kind, mode), columns)
    if kind == "f64":
        assert [word & ~(1 << 63) if word << 1 & (1 << 64) - 1 == 0 else word for word in found] == [
            word & ~(1 << 63) if word << 1 & (1 << 64) - 1 == 0 else word for word in expected
        ]
    else:
        assert found == expected


def test_fma_near_ties() -> None:
    """Products of two f32 whose sum with a third lies a hair beside a tie: rounding twice gets these wrong."""
    rows: list[tuple[int, int, int]] = []
    while len(rows) < 3000:
        a, b = (random.randrange(1 << 23, 1 << 24) | 1 for _ in range(2))
        product = Fraction(a * b)
        low = random.choice([1, -1, 3]) * Fraction(2) ** -random.randint(1, 60)
        unit = Fraction(2) ** ((a * b).bit_length() - 24)
        target = (product // unit) * unit + unit / 2 + low
        c = encode(target - product, "f32")
        rows.append((encode(Fraction(a), "f32"), encode(Fraction(b), "f32"), c))
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert run("fma.rn.f32", "f32", columns, "f32") == mapped(exact("fma", "f32", "rn"), columns)


def test_fma_of_f64_equals_the_one_of_the_c_library() -> None:
    fma = ctypes.CDLL("libm.so.6").fma
    fma.argtypes, fma.restype = [ctypes.c_double] * 3, ctypes.c_double
    columns = operands(["f64"] * 3, 4000)
    found = run("fma.rn.f64", "f64", columns, "f64")
    expected = mapped(lambda *row: encode(fma(*(decode(word, "f64") for word in row)), "f64"), columns)
    assert same(found, expected, "f64")


def test_subnormal_values_are_flushed_on_both_sides() -> None:
    columns = operands(["f32"] * 3)
    for name in ("add", "sub", "mul", "fma"):
        some = columns if name == "fma" else columns[:2]
        function = exact(name, "f32", "rn")
        expected = mapped(lambda *row, f=function: flushed(f(*map(flushed, row))), some)
        assert run(f"{name}.rn.ftz.f32", "f32", some, "f32") == expected


def test_saturation() -> None:
    columns = operands(["f32"] * 3)
    for name in ("add", "mul", "fma"):
        some = columns if name == "fma" else columns[:2]
        function = exact(name, "f32", "rn")

        def clamped(*row: int, f: Callable[..., int] = function) -> int:
            value = decode(f(*row), "f32")
            return encode(min(value, 1.0), "f32") if value > 0 else 0

        assert run(f"{name}.rn.sat.f32", "f32", some, "f32") == mapped(clamped, some)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_reciprocal_and_root(kind: str) -> None:
    columns = operands([kind] * 2)

    def quotient(a: float, b: float) -> Fraction | float:
        if not (math.isfinite(a) and math.isfinite(b)) or b == 0 or a == 0:
            with np.errstate(all="ignore"):
                return float(np.float64(a) / np.float64(b))
        return Fraction(a) / Fraction(b)

    divided = mapped(lambda a, b: encode(quotient(decode(a, kind), decode(b, kind)), kind), columns)
    assert same(run(f"div.rn.{kind}", kind, columns, kind), divided, kind)
    inverse = mapped(lambda a: encode(quotient(1.0, decode(a, kind)), kind), columns[:1])
    assert same(run(f"rcp.rn.{kind}", kind, columns[:1], kind), inverse, kind)

    def root(bits: int) -> int:
        value = decode(bits, kind)
        if value == 0 or math.isnan(value) or value == math.inf:
            return encode(value, kind)
        if value < 0:
            return encode(math.nan, kind)
        whole = Fraction(value)
        # As an integer root with many bits to spare, with the rest as one bit more: then rounding is that of the root.
        scaled = whole.numerator * whole.denominator << 240
        floor = math.isqrt(scaled)
        return encode(Fraction(2 * floor + (floor * floor != scaled), whole.denominator << 121), kind)

    assert same(run(f"sqrt.rn.{kind}", kind, columns[:1], kind), mapped(root, columns[:1]), kind)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "min", "max", "neg", "abs"])
def test_pairs_of_halves_are_two_halves(name: str, kind: str) -> None:
    count = {"fma": 3, "neg": 1, "abs": 1}.get(name, 2)
    columns = operands([kind] * count)
    rounding = "" if name in ("min", "max", "neg", "abs") else ".rn"
    one = run(f"{name}{rounding}.{kind}", kind, columns, kind)
    packed = [
        [low | high << 16 for low, high in zip(column, reversed(column), strict=True)] for column in columns
    ]  # fmt: skip
    found = run(f"{name}{rounding}.{kind}x2", "b32", packed, "b32")
    assert found == [low | high << 16 for low, high in zip(one, reversed(one), strict=True)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("largest", [False, True])
def test_extremes(kind: str, largest: bool) -> None:
    """A number wins over NaN, or with .NaN loses; of two zeros the sign decides."""
    columns = operands([kind] * 2)
    name = "max" if largest else "min"

    def extreme(a: int, b: int, nan_wins: bool) -> int:
        x, y = decode(a, kind), decode(b, kind)
        if math.isnan(x) or math.isnan(y):
            if nan_wins or (math.isnan(x) and math.isnan(y)):
                return NAN.get(kind, 0x7FF8 << 48)
            return b if math.isnan(x) else a
        first = (x, -(a >> (bits_of(kind) - 1))) > (y, -(b >> (bits_of(kind) - 1)))
        return (a if first else b) if largest else (b if first else a)

    assert same(run(f"{name}.{kind}", kind, columns, kind), mapped(lambda a, b: extreme(a, b, False), columns), kind)
    if kind != "f64":
        expected = mapped(lambda a, b: extreme(a, b, True), columns)
        assert run(f"{name}.NaN.{kind}", kind, columns, kind) == expected
    if kind == "f32":
        expected = mapped(lambda a, b: flushed(extreme(flushed(a), flushed(b), False)), columns)
        assert run(f"{name}.ftz.f32", kind, columns, kind) == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_signs_are_bits(kind: str) -> None:
    columns = operands([kind] * 2)
    sign = 1 << (bits_of(kind) - 1)
    assert run(f"neg.{kind}", kind, columns[:1], kind) == [word ^ sign for word in columns[0]]
    assert run(f"abs.{kind}", kind, columns[:1], kind) == [word & ~sign for word in columns[0]]
    if kind in ("f32", "f64"):
        expected = [a & sign | b & ~sign for a, b in zip(*columns, strict=True)]
        assert run(f"copysign.{kind}", kind, columns, kind) == expected


def test_relu_of_fma() -> None:
    for kind in ("f16", "bf16"):
        columns = operands([kind] * 3)
        function = exact("fma", kind, "rn")
        expected = [0 if word >> 15 else word for word in mapped(function, columns)]
        assert run(f"fma.rn.relu.{kind}", kind, columns, kind) == expected


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a < b or a > b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: not (a < b or a > b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
    "num": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "nan": lambda a, b: math.isnan(a) or math.isnan(b),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_comparisons(kind: str) -> None:
    columns = operands([kind] * 2, 100)
    inputs = [(kind, as_array(column, kind)) for column in columns]
    text = " ".join(f"setp.{name}.{kind} %d{at}, %a0, %a1;" for at, name in enumerate(COMPARISONS))
    for found, (name, function) in zip(
        run_instructions(text, inputs, ["pred"] * len(COMPARISONS)), COMPARISONS.items(), strict=True
    ):
        expected = mapped(lambda a, b, f=function: int(f(decode(a, kind), decode(b, kind))), columns)
        assert found.tolist() == expected, name


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_comparisons_of_pairs(kind: str) -> None:
    columns = operands([kind] * 2, 100)
    packed = [[low | high << 16 for low, high in zip(column, reversed(column), strict=True)] for column in columns]
    inputs = [("b32", as_array(column, "b32")) for column in packed]
    for name in ("eq", "ltu", "nan"):
        low, high = run_instructions(f"setp.{name}.{kind}x2 %d0|%d1, %a0, %a1;", inputs, ["pred"] * 2)
        expected = mapped(lambda a, b, f=COMPARISONS[name]: int(f(decode(a, kind), decode(b, kind))), columns)
        assert low.tolist() == expected and high.tolist() == expected[::-1]


def test_comparisons_that_are_joined() -> None:
    columns = operands(["s32", "s32"], 100)
    third = [row % 2 for row in range(len(columns[0]))]
    inputs = [("s32", as_array(column, "s32")) for column in columns] + [("pred", np.array(third, np.uint8))]
    text = "setp.lt.and.s32 %d0|%d1, %a0, %a1, %a2; setp.lo.xor.u32 %d2|_, %a0, %a1, !%a2;"
    found = run_instructions(text, inputs, ["pred"] * 3)
    for row, (a, b, c) in enumerate(zip(*columns, third, strict=True)):
        less = (a ^ 1 << 31) < (b ^ 1 << 31)
        assert [int(part[row]) for part in found] == [less and c, not less and c, (a < b) != (not c)]


def test_kinds_of_numbers() -> None:
    (column,) = operands(["f32"])
    tests = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
    text = " ".join(f"testp.{name}.f32 %d{at}, %a0;" for at, name in enumerate(tests))
    found = run_instructions(text, [("f32", as_array(column, "f32"))], ["pred"] * len(tests))
    for row, bits in enumerate(column):
        value, field = decode(bits, "f32"), bits >> 23 & 255
        expected = [
            math.isfinite(value), math.isinf(value), not math.isnan(value), math.isnan(value), 0 < field < 255,
            field == 0 and value != 0,
        ]  # fmt: skip
        assert [bool(part[row]) for part in found] == expected


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("ex2.approx", np.exp2), ("lg2.approx", np.log2), ("sin.approx", np.sin), ("cos.approx", np.cos),
        ("tanh.approx", np.tanh), ("rcp.approx", lambda x: 1 / x), ("sqrt.approx", np.sqrt),
        ("rsqrt.approx", lambda x: 1 / np.sqrt(x)), ("div.full", lambda x, y: x / y),
        ("div.approx", lambda x, y: np.where((np.abs(y) <= 2.0**126) | np.isinf(y) | np.isnan(x), x / y, x * 0.0 / y)),
    ],
)  # fmt: skip
def test_approximations_are_the_nearest_float(instruction: str, function: Callable[..., np.ndarray]) -> None:
    columns = operands(["f32", "f32"] if instruction.startswith("div") else ["f32"])
    values = [as_array(column, "f32").view(np.float32) for column in columns]
    for ftz in ("", ".ftz"):
        if ftz and instruction == "tanh.approx":
            continue
        with np.errstate(all="ignore"):
            given = [np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x) if ftz else x for x in values]
            expected = function(*[x.astype(np.float64) for x in given]).astype(np.float32)
            expected = np.where(np.abs(expected) < 2.0**-126, np.copysign(0, expected), expected) if ftz else expected
        found = np.array(run(f"{instruction}{ftz}.f32", "f32", columns, "f32"), np.uint32)
        nan = np.isnan(expected)
        assert (found[~nan] == expected.astype(np.float32).view(np.uint32)[~nan]).all()
        assert (found[nan] == NAN["f32"]).all()
