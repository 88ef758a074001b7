"""A clamp between two roundings, computed before both, gives the numbers of the order that the IR states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.targets.cpu.elementwise.elementwise import ElementwiseFamily
from tests.support.region_kernels import BF16_LEVELS, DTYPES, Array, run_region

LOW, HIGH = 0.0, 6.0
BODIES = {
    # relu6 as PyTorch computes it: in f32, between two roundings.
    "in f32": """
    %r = arith.truncf %a : f32 to KIND
    %w = arith.extf %r : KIND to f32
    %c1 = arith.cmpf olt, %w, %low : f32
    %s1 = arith.select %c1, %low, %w : f32
    %c2 = arith.cmpf ogt, %s1, %high : f32
    %s2 = arith.select %c2, %high, %s1 : f32
    %out = arith.truncf %s2 : f32 to KIND
""",
    "narrow": """
    %r = arith.truncf %a : f32 to KIND
    %c1 = arith.cmpf olt, %r, %low : KIND
    %s1 = arith.select %c1, %low, %r : KIND
    %c2 = arith.cmpf oge, %s1, %high : KIND
    %out = arith.select %c2, %high, %s1 : KIND
""",
    "read twice": """
    %r = arith.truncf %a : f32 to KIND
    %c1 = arith.cmpf olt, %r, %low : KIND
    %s1 = arith.select %c1, %low, %r : KIND
    %out = arith.addf %s1, %r : KIND
""",
}


def text_of(name: str, kind: str, high: float) -> str:
    body = BODIES[name].replace("KIND", kind)
    constant = "f32" if name == "in f32" else kind
    return f"""
func.func @region(%x: tensor<SIZExf32>) -> tensor<SIZEx{kind}> {{
  %low = arith.constant {LOW} : {constant}
  %high = arith.constant {high} : {constant}
  %e = tensor.empty() : tensor<SIZEx{kind}>
  %y = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}} ins(%x : tensor<SIZExf32>) outs(%e : tensor<SIZEx{kind}>) {{
  ^bb0(%a: f32, %o: {kind}):
{body}    linalg.yield %out : {kind}
  }} -> tensor<SIZEx{kind}>
  return %y : tensor<SIZEx{kind}>
}}"""


def inputs() -> Array:
    """All signs and exponents with random digits, ties between neighbours of both types, special values."""
    generator = np.random.default_rng(5)
    bits = np.arange(0, 1 << 32, 1 << 18, dtype=np.uint32) + generator.integers(0, 1 << 18, 1 << 14, dtype=np.uint32)
    near = np.array([0.0, 6.0], np.float32)[:, None] + np.linspace(-0.05, 0.05, 2001, dtype=np.float32)
    ties = (np.arange(0x4000, 0x4140, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 6.0, 1e-40, -1e-40, 65504.0, 65520.0, 3e38], np.float32)
    return np.concatenate([bits.view(np.float32), near.ravel(), ties, special])


def stated_order(name: str, x: Array, dtype: Any, high: float) -> Array:
    with np.errstate(all="ignore"):
        rounded = x.astype(dtype).astype(np.float32)
        clamped = np.where(rounded < LOW, np.float32(LOW), rounded)
        if name == "read twice":
            return (clamped + rounded).astype(dtype)
        return np.where(clamped > high, np.float32(high), clamped).astype(dtype)


@pytest.mark.parametrize("level", BF16_LEVELS)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("high", [HIGH, 6.03])
@pytest.mark.parametrize("name", BODIES)
def test_numbers_are_those_of_the_stated_order(name: str, kind: str, high: float, level: str) -> None:
    """6.03 is no number of the types: rounding and such a clamp must keep their order."""
    if high != HIGH and name != "in f32":
        high = float(np.float32(high).astype(DTYPES[kind]))
    x = inputs()
    text = text_of(name, kind, high).replace("SIZE", str(x.size))
    (ours,) = run_region(ElementwiseFamily(), text, [x], [x.shape], level)
    expected = stated_order(name, x, DTYPES[kind], float(np.float32(high)))
    ours_wide, wide = ours.astype(np.float32), expected.astype(np.float32)
    # Denormal numbers are zero where the CPU rounds them so, and a zero may have either sign.
    tiny = np.abs(x) < 2.0**-125
    same = (ours_wide == wide) | (np.isnan(ours_wide) & np.isnan(wide)) | (tiny & (np.abs(ours_wide) < 2.0**-124))
    assert same.all(), (x[~same][:5], ours_wide[~same][:5], wide[~same][:5])
