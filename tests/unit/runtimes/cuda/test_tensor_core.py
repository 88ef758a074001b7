"""Sums of products of tensor cores: recorded rows bit for bit, and the rule on single numbers by exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.tensor_core.rules import Generation, SumRule, generation_of, sum_rule
from lowerkit.runtimes.cuda.simulated.tensor_core.sums import exact_sum_of_products, sum_of_products
from lowerkit.runtimes.cuda.simulated.tensor_core.terms import terms_of, values_of

Array = np.ndarray[Any, Any]
ROWS: Mapping[str, Array] = dict(np.load(Path(__file__).parents[3] / "golden" / "tensor_core_rows.npz"))
SETS: Mapping[str, Generation] = {
    "A100/bf16": "ampere", "A100/fp16": "ampere", "L40S/bf16": "ada", "H100/bf16": "hopper", "H100/fp16": "hopper",
    "H100/tf32": "hopper", "B200/bf16": "blackwell", "B200/fp16": "blackwell",
}  # fmt: skip
FACTORS_OF = {"L40S": "A100", "B200": "H100"}
KINDS = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}
LEAST = {"bf16": -126, "tf32": -126, "f16": -14, "e5m2": -14, "e4m3": -6}
INFINITY = {"bf16": 0x7F80, "f16": 0x7C00, "tf32": 0x7F800000, "e5m2": 0x7C}
RULES = [
    (generation, kind, result, instruction)
    for generation in ("ampere", "ada", "hopper", "blackwell")
    for kind in KINDS
    for result in (("f32", "f16") if kind in ("f16", "e4m3", "e5m2") else ("f32",))
    for instruction in ("mma", "wgmma")
    if sum_rule(generation, kind, result, instruction) is not None
]


@pytest.mark.parametrize("name", SETS)
def test_recorded_rows(name: str) -> None:
    card, kind = name.split("/")
    a, b = (np.ascontiguousarray(ROWS[f"{FACTORS_OF.get(card, card)}/{kind}/{part}"].T) for part in "ab")
    kind = {"fp16": "f16"}.get(kind, kind)
    rule = sum_rule(SETS[name], kind, "f32")
    assert rule is not None
    found = sum_of_products(terms_of(a, kind), terms_of(b, kind), ROWS[f"{name}/c"].view(np.float32), rule)
    assert found.size == 500
    assert (found.view(np.uint32) == ROWS[f"{name}/d"]).all()


def test_rows_tell_generations_apart() -> None:
    """Each rule but its own fails on rows of a card, and so does a sum rounded once."""
    a, b, c, d = (ROWS[f"H100/fp16/{part}"] for part in "abcd")
    x, y = terms_of(np.ascontiguousarray(a.T), "f16"), terms_of(np.ascontiguousarray(b.T), "f16")
    for rule in (SumRule(24, 16), SumRule(26, 16), SumRule(25, 8), SumRule(25, 16, result_bits=22)):
        found = sum_of_products(x, y, c.view(np.float32), rule)
        assert (found.view(np.uint32) == d).mean() < 0.95
    assert (exact_sum_of_products(x, y, c.view(np.float32)).view(np.uint32) == d).mean() < 0.75


def exponent(value: float, kind: str) -> int:
    return max(math.frexp(value)[1] - 1, LEAST.get(kind, -14 if kind == "result f16" else -126))


def cut(value: Fraction, unit: Fraction) -> Fraction:
    return math.trunc(value / unit) * unit


def reference(a: list[float], b: list[float], c: float, kind: str, rule: SumRule, result: str) -> float:
    """One row by exact arithmetic."""
    for start in range(0, len(a), rule.group):
        pairs = list(zip(a[start : start + rule.group], b[start : start + rule.group], strict=True))
        plain = sum(x * y for x, y in pairs) + c
        if not math.isfinite(plain):
            c = plain
            continue
        terms = [(Fraction(x) * Fraction(y), exponent(x, kind) + exponent(y, kind)) for x, y in pairs]
        terms.append((Fraction(c), exponent(c, f"result {result}")))
        largest = max([power for value, power in terms if value] or [0])
        unit = Fraction(2) ** (max(largest, rule.least_exponent) - rule.fraction_bits)
        total = sum((cut(value, unit) for value, _ in terms), Fraction(0))
        if result == "f16":
            with np.errstate(over="ignore"):
                c = float(np.float64(total).astype(np.float16))
            continue
        power = max(math.frexp(float(total))[1] - 1, -126)
        total = cut(total, Fraction(2) ** (power - rule.result_bits))
        c = float(total) if abs(total) < Fraction(2) ** 128 else math.copysign(math.inf, total)
    return c


def random_rows(kind: str, length: int, rows: int, spread: str) -> Array:
    """Bits [length, rows]: any bits, or values near 1, with zeros and subnormal values among them."""
    generator = np.random.default_rng(len(spread) + length)
    dtype = np.dtype(f"u{KINDS[kind] // 8}")
    bits = generator.integers(0, 1 << KINDS[kind], (length, rows), dtype=np.uint64).astype(dtype)
    if spread == "near one":
        with np.errstate(all="ignore"):
            near = generator.standard_normal((length, rows)).astype(np.float32)
        if kind == "tf32":
            bits = near.view(np.uint32)
        elif kind == "bf16":
            bits = (near.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        elif kind == "f16":
            bits = near.astype(np.float16).view(np.uint16)
    bits[generator.random(bits.shape) < 0.1] = 0
    small = generator.random(bits.shape) < 0.1
    bits[small] = generator.integers(1, 4, int(small.sum())).astype(dtype)
    return bits


@pytest.mark.parametrize("spread", ["any bits", "near one"])
@pytest.mark.parametrize(("generation", "kind", "result", "instruction"), RULES)
def test_rule_on_single_numbers(generation: Any, kind: str, result: str, instruction: Any, spread: str) -> None:
    rule = sum_rule(generation, kind, result, instruction)
    assert rule is not None
    a, b = random_rows(kind, 32, 60, spread), random_rows(kind, 32, 60, spread)[::-1].copy()
    generator = np.random.default_rng(5)
    c = generator.standard_normal(60).astype(np.float16 if result == "f16" else np.float32)
    c[:5] = [0.0, -0.0, np.inf, np.nan, np.finfo(c.dtype).smallest_subnormal]
    found = sum_of_products(terms_of(a, kind), terms_of(b, kind), c, rule)
    with np.errstate(all="ignore"):
        x, y = values_of(a, kind).astype(np.float64), values_of(b, kind).astype(np.float64)
        expected = [
            reference(x[:, row].tolist(), y[:, row].tolist(), float(c[row]), kind, rule, result) for row in range(60)
        ]
        wanted = np.array(expected).astype(c.dtype)
    nan = np.isnan(wanted)
    assert (found[~nan] == wanted[~nan]).all()
    bits = found.view(np.uint16 if result == "f16" else np.uint32)
    assert (bits[nan] == (0x7FFF if result == "f16" else 0x7FFFFFFF)).all()


@pytest.mark.parametrize("kind", INFINITY)
def test_infinities(kind: str) -> None:
    dtype = np.dtype(f"u{KINDS[kind] // 8}")
    one = {"bf16": 0x3F80, "f16": 0x3C00, "tf32": 0x3F800000, "e5m2": 0x3C}[kind]
    sign = 1 << (KINDS[kind] - 1)
    infinite = INFINITY[kind]
    # Two products and an accumulator in each column.
    a = np.array([[infinite, infinite, infinite, one, infinite], [one, one, one, one, 0]], dtype)
    b = np.array([[one, one | sign, one, one, 0], [one, one, infinite | sign, one, 0]], dtype)
    c = np.array([1, 1, 1, -np.inf, 1], np.float32)
    rule = sum_rule("blackwell", kind, "f32")
    assert rule is not None
    found = sum_of_products(terms_of(a, kind), terms_of(b, kind), c, rule)
    assert found[0] == np.inf and found[1] == -np.inf and found[3] == -np.inf
    assert found.view(np.uint32)[[2, 4]].tolist() == [0x7FFFFFFF] * 2


def test_overflow_is_infinite_though_the_rest_is_cut() -> None:
    large = np.full((2, 2), 0x7F00, np.uint16)  # 2**127 in bf16
    one = np.full((2, 2), 0x3F80, np.uint16)
    one[1, 1] = 0xBF80
    rule = sum_rule("hopper", "bf16", "f32")
    assert rule is not None
    c = np.array([0, np.finfo(np.float32).max], np.float32)
    found = sum_of_products(terms_of(large, "bf16"), terms_of(one, "bf16"), c, rule)
    assert found.tolist() == [np.inf, np.finfo(np.float32).max]


def test_results_in_f16_are_rounded_to_nearest() -> None:
    rule = sum_rule("ampere", "f16", "f16")
    assert rule is not None
    a = np.array([[1.0, 1.0, 65504.0]], np.float16).view(np.uint16)
    b = np.array([[2.0**-11, 3 * 2.0**-11, 1.0]], np.float16).view(np.uint16)
    c = np.array([1, 1, 16], np.float16)
    found = sum_of_products(terms_of(a, "f16"), terms_of(b, "f16"), c, rule)
    assert found.tolist() == [1.0, 1 + 2 * 2.0**-10, np.inf]


def test_what_is_not_known_has_no_rule() -> None:
    assert generation_of("sm_80") == generation_of("sm_86") == "ampere"
    assert generation_of("sm_89") == "ada" and generation_of("sm_90a") == "hopper"
    assert generation_of("sm_100f") == "blackwell"
    assert generation_of("sm_75") is None and generation_of("") is None
    assert sum_rule("ampere", "e4m3", "f32") is None


def test_shapes_broadcast_and_values_do_not_depend_on_them() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((16, 5, 1, 3)).astype(np.float16).view(np.uint16)
    b = generator.standard_normal((16, 1, 7, 3)).astype(np.float16).view(np.uint16)
    c = generator.standard_normal((5, 7, 3)).astype(np.float32)
    rule = sum_rule("ampere", "f16", "f32")
    assert rule is not None
    whole = sum_of_products(terms_of(a, "f16"), terms_of(b, "f16"), c, rule)
    for i, j, k in np.ndindex(c.shape):
        row, column = a[:, i, 0, k].copy()[:, None], b[:, 0, j, k].copy()[:, None]
        one = sum_of_products(terms_of(row, "f16"), terms_of(column, "f16"), c[i, j, k : k + 1], rule)
        assert one[0] == whole[i, j, k]
