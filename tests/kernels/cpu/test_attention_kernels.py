"""Attention kernels against a float64 reference, masks, causal order, grouped queries and odd sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.dialect.reference.rows import attention as reference
from lowerkit.targets.cpu.attention.attention import AttentionFamily
from lowerkit.targets.plan import DeviceCode, Refusal
from tests.support.region_kernels import (
    BF16_LEVELS,
    LEVELS,
    Array,
    anchored,
    largest_error,
    plan_region,
    random,
    run_region,
    tensor,
)

FAMILY = AttentionFamily()
Sizes = dict[str, int]


PLAIN = 'masking = "add", fill = 0.0 : f64, empty_rows = "zero"'


def text_of(
    shapes: list[Any], element: str, mask: tuple[Any, str] | None, causal: bool, scale: float, rest: str = PLAIN
) -> str:
    types = [tensor(shape, element) for shape in shapes]
    operands = types[:3] + ([tensor(*mask)] if mask is not None else [])
    attributes = (
        f"scale = {scale:.15f} : f64, causal = {str(causal).lower()}, {rest}, "
        f"operandSegmentSizes = array<i32: 1, 1, 1, {int(mask is not None)}>"
    )
    return anchored("attention", operands, types[3], attributes)


def exact_attention(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> Array:
    """float64, rows that see nothing give zeros."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).transpose(0, 1, 3, 2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask.astype(np.float64)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total == 0, 1, total)) @ np.repeat(v, group, 1)


def operands_of(sizes: tuple[int, ...], element: str) -> list[Array]:
    batch, heads, key_heads, queries, keys, depth, value_depth = sizes
    return [
        random((batch, heads, queries, depth), element, 1),
        random((batch, key_heads, keys, depth), element, 2),
        random((batch, key_heads, keys, value_depth), element, 3),
    ]


def budget(q: Array, k: Array, v: Array, scale: float) -> float:
    """Rounding of scores (depth terms) shifts a weight by as much relatively; values add what their sums round."""
    scores = float(np.abs(q.astype(np.float64)).max() * np.abs(k.astype(np.float64)).max()) * q.shape[-1] ** 0.5 * scale
    return float(np.abs(v.astype(np.float64)).max()) * 2.0**-24 * (4 * scores + 16)


CASES = [
    # batch, heads, key heads, queries, keys, depth, value depth, causal
    ((1, 2, 2, 5, 7, 8, 8), False),
    ((2, 3, 3, 33, 53, 20, 12), True),
    ((1, 2, 2, 53, 33, 20, 36), True),
    ((1, 2, 1, 1, 40, 16, 16), False),
    ((1, 4, 2, 1, 40, 16, 16), True),
    ((1, 4, 2, 3, 40, 64, 64), True),
    ((2, 6, 2, 40, 40, 16, 16), True),
    ((1, 1, 1, 20, 600, 16, 16), False),
    ((1, 1, 1, 600, 530, 16, 16), True),
    ((1, 1, 1, 1, 1, 1, 1), False),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("sizes", "causal"), CASES)
def test_against_float64(level: str, sizes: tuple[int, ...], causal: bool) -> None:
    q, k, v = operands_of(sizes, "f32")
    shape = (*q.shape[:3], v.shape[3])
    scale = sizes[5] ** -0.5
    text = text_of([q.shape, k.shape, v.shape, shape], "f32", None, causal, scale)
    (result,) = run_region(FAMILY, text, [q, k, v], [shape], level)
    assert largest_error(result, exact_attention(q, k, v, None, causal, scale)) <= budget(q, k, v, scale)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "i1"])
@pytest.mark.parametrize(
    ("sizes", "mask", "causal"),
    [
        ((2, 4, 2, 3, 40, 16, 16), (2, 4, 3, 40), False),
        ((2, 4, 2, 3, 40, 16, 16), (1, 1, 3, 40), True),
        ((2, 4, 4, 40, 37, 16, 16), (2, 1, 1, 37), False),
        ((2, 4, 4, 40, 37, 16, 16), (40, 37), False),
        ((1, 2, 2, 20, 601, 16, 16), (1, 2, 20, 601), False),
        ((1, 2, 2, 20, 37, 16, 16), (1, 2, 20, 1), False),
    ],
)
def test_masks(level: str, element: str, sizes: tuple[int, ...], mask: tuple[int, ...], causal: bool) -> None:
    q, k, v = operands_of(sizes, "f32")
    shape = (*q.shape[:3], v.shape[3])
    scale = sizes[5] ** -0.5
    given = random(mask, element, 4)
    if element == "f32":
        given.flat[::3] = -np.inf
    given[..., 0, :] = False if element == "i1" else -np.inf  # the first row sees nothing
    text = text_of([q.shape, k.shape, v.shape, shape], "f32", (mask, element), causal, scale)
    (result,) = run_region(FAMILY, text, [q, k, v, given], [shape], level)
    exact = exact_attention(q, k, v, given, causal, scale)
    assert largest_error(result, exact) <= 2 * budget(q, k, v, scale)
    if mask[-2] > 1:
        assert (result[:, :, 0] == 0).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("queries", "keys"), [(35, 77), (1, 300), (40, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_sizes(level: str, queries: int, keys: int, causal: bool) -> None:
    q, k, v = operands_of((2, 4, 2, queries, keys, 20, 20), "f32")
    shape = (2, 4, queries, 20)
    types = [("?", 4, "?", 20), ("?", 2, "?", 20), ("?", 2, "?", 20), ("?", 4, "?", 20)]
    (result,) = run_region(FAMILY, text_of(types, "f32", None, causal, 0.25), [q, k, v], [shape], level)
    assert largest_error(result, exact_attention(q, k, v, None, causal, 0.25)) <= budget(q, k, v, 0.25)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_dynamic_mask_of_one_row_broadcasts(level: str, rows: int) -> None:
    q, k, v = operands_of((1, 2, 2, 20, 37, 16, 16), "f32")
    mask = random((1, 1, rows, 37), "f32", 4)
    text = text_of([q.shape, k.shape, v.shape, q.shape], "f32", ((1, 1, "?", 37), "f32"), False, 0.25)
    (result,) = run_region(FAMILY, text, [q, k, v, mask], [q.shape], level)
    assert largest_error(result, exact_attention(q, k, v, mask, False, 0.25)) <= 2 * budget(q, k, v, 0.25)


@pytest.mark.parametrize("level", BF16_LEVELS)
@pytest.mark.parametrize(("element", "spacing"), [("bf16", 2.0**-8), ("f16", 2.0**-11)])
def test_narrow_floats_round_once_and_pairs_of_weights_too(level: str, element: str, spacing: float) -> None:
    q, k, v = operands_of((1, 2, 2, 35, 77, 20, 24), element)
    shape = (1, 2, 35, 24)
    text = text_of([q.shape, k.shape, v.shape, shape], element, None, True, 0.25)
    (result,) = run_region(FAMILY, text, [q, k, v], [shape], level)
    exact = exact_attention(q, k, v, None, True, 0.25)
    allowed = np.abs(exact) * spacing + budget(q, k, v, 0.25)
    if element == "bf16" and level == "znver4":
        # The weights are bf16 too, and their sum is of rounded ones: each is off by half a spacing, and so is the sum.
        allowed += exact_attention(q, k, np.abs(v), None, True, 0.25) * spacing
    error = np.abs(result.astype(np.float64) - exact)
    assert (error <= allowed).all()


@pytest.mark.parametrize("level", LEVELS)
def test_nan_stays_in_its_row_and_masks_of_the_lowest_float_do_not_overflow(level: str) -> None:
    q, k, v = operands_of((1, 1, 1, 20, 20, 16, 16), "f32")
    q[0, 0, 3, 0] = np.nan
    mask = np.zeros((1, 1, 20, 20), np.float32)
    mask[..., 5, :] = np.finfo(np.float32).min
    text = text_of([q.shape, k.shape, v.shape, q.shape], "f32", (mask.shape, "f32"), False, 0.25)
    (result,) = run_region(FAMILY, text, [q, k, v, mask], [q.shape], level)
    assert np.isnan(result[0, 0, 3]).all()
    assert np.isfinite(np.delete(result[0, 0], 3, 0)).all()
    query, key, value, bias = (torch.from_numpy(array) for array in (q, k, v, mask))
    eager = torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=0.25)
    assert largest_error(result[0, 0, 5], eager[0, 0, 5].numpy()) <= 1e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("masking", "fill", "empty_rows"),
    [
        *[("add", 0.0, "zero"), ("add", 0.0, "nan"), ("add", 0.0, "guarded")],
        *[("select", -math.inf, "nan"), ("select", -1e4, "nan"), ("select", 1.5, "guarded")],
    ],
)
@pytest.mark.parametrize(("keys", "shape"), [(12, (1, 1, 20, 12)), (530, (1, 2, 1, 530))])
def test_rows_without_keys_and_what_is_hidden(
    level: str, masking: str, fill: float, empty_rows: str, keys: int, shape: tuple[int, ...]
) -> None:
    """Against the reference of the op: rows of -inf, rows with NaN, hidden NaN; whole rows and online softmax."""
    q, k, v = operands_of((1, 2, 2, 20, keys, 16, 16), "f32")
    q[0, 0, 7, 0] = np.nan
    k[0, :, 4] = np.inf
    k[0, 1, 5] = np.nan
    mask = np.ones(shape, np.bool_)
    mask[..., 4:6] = False
    mask[:, :, shape[2] // 2, :] = False
    rest = f'masking = "{masking}", fill = {_float(fill)} : f64, empty_rows = "{empty_rows}"'
    text = text_of([q.shape, k.shape, v.shape, q.shape], "f32", (mask.shape, "i1"), False, 0.25, rest)
    (result,) = run_region(FAMILY, text, [q, k, v, mask], [q.shape], level)
    with np.errstate(invalid="ignore"):
        exact = reference(q, k, v, mask, scale=0.25, causal=False, masking=masking, fill=fill, empty_rows=empty_rows)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", BF16_LEVELS)
@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize(("queries", "keys", "at"), [(1, 2, 1), (3, 40, 39), (600, 600, 555), (40, 1100, 700)])
def test_values_of_keys_behind_the_causal_ones(level: str, element: str, queries: int, keys: int, at: int) -> None:
    """A weight of 0 times NaN or infinity is NaN; keys are taken 512 at a time, those of later blocks do not count."""
    q, k, v = operands_of((1, 2, 2, queries, keys, 20, 20), element)
    v[0, 0, at, 3], v[0, 1, at, 19] = np.nan, -np.inf
    text = text_of([q.shape, k.shape, v.shape, q.shape], element, None, True, 0.25)
    (result,) = run_region(FAMILY, text, [q, k, v], [q.shape], level)
    query, key, value = (torch.from_numpy(array.astype(np.float32)) for array in (q, k, v))
    eager = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.25).numpy()
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), np.isnan(eager))
    assert np.isnan(eager).any() == (at < 512 or queries > 512)


def _float(number: float) -> str:
    return "0xFFF0000000000000" if number == -math.inf else f"{number:.6f}"


@pytest.mark.parametrize("keys", [0, 3])
def test_without_keys_all_rows_are_zero(keys: int) -> None:
    """A softmax over nothing is no NaN: there is nothing to sum."""
    q, k, v = operands_of((1, 1, 1, 5, keys, 8, 8), "f32")
    shapes: list[Any] = [q.shape, (1, 1, "?", 8), (1, 1, "?", 8), q.shape]
    rest = 'masking = "add", fill = 0.0 : f64, empty_rows = "nan"'
    (result,) = run_region(FAMILY, text_of(shapes, "f32", None, False, 0.25, rest), [q, k, v], [q.shape], "x86-64-v3")
    assert np.isfinite(result).all()
    assert result.any() == (keys > 0)


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_moves_heads_inwards(level: str) -> None:
    text = """func.func @region(%q: tensor<2x3x20x16xf32>, %k: tensor<2x3x30x16xf32>, %v: tensor<2x3x30x16xf32>)
    -> tensor<2x20x3x16xf32> {
  %r = "lk.attention"(%q, %k, %v) {scale = 0.25 : f64, causal = false, masking = "add",
    fill = 0.0 : f64, empty_rows = "zero", operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<2x3x20x16xf32>, tensor<2x3x30x16xf32>, tensor<2x3x30x16xf32>) -> tensor<2x3x20x16xf32>
  %e = tensor.empty() : tensor<2x20x3x16xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(b, s, h, d) -> (b, h, s, d)>,
    affine_map<(b, s, h, d) -> (b, s, h, d)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%r : tensor<2x3x20x16xf32>) outs(%e : tensor<2x20x3x16xf32>) {
  ^bb0(%x: f32, %y: f32):
    linalg.yield %x : f32
  } -> tensor<2x20x3x16xf32>
  return %o : tensor<2x20x3x16xf32>
}"""
    q, k, v = operands_of((2, 3, 3, 20, 30, 16, 16), "f32")
    (result,) = run_region(FAMILY, text, [q, k, v], [(2, 20, 3, 16)], level)
    exact = exact_attention(q, k, v, None, False, 0.25).transpose(0, 2, 1, 3)
    assert largest_error(result, exact) <= budget(q, k, v, 0.25)


def test_long_rows_are_taken_in_blocks() -> None:
    shape = (1, 1, 64, 16)
    _, plan = plan_region(FAMILY, text_of([shape, (1, 1, 4096, 16), (1, 1, 4096, 16), shape], "f32", None, False, 0.25))
    assert isinstance(plan, DeviceCode)
    assert "online softmax" in plan.note
    assert plan.scratch_bytes < 1 << 18


def test_double_precision_is_refused() -> None:
    shape = (1, 1, 4, 4)
    _, answer = plan_region(FAMILY, text_of([shape] * 4, "f64", None, False, 0.5))
    assert isinstance(answer, Refusal)
    assert "f64" in answer.reason


@pytest.mark.parametrize("level", BF16_LEVELS[-1:])
@pytest.mark.parametrize("mask", [None, "rows", "keys"])
@pytest.mark.parametrize(("sizes", "causal"), CASES)
def test_pairs_against_float64(level: str, sizes: tuple[int, ...], causal: bool, mask: str | None) -> None:
    """bf16 where pairs are multiplied: odd numbers of keys and features, blocks of keys, stacked heads, masks."""
    q, k, v = operands_of(sizes, "bf16")
    shape, scale = (*q.shape[:3], v.shape[3]), sizes[5] ** -0.5
    given, described = None, None
    if mask is not None:
        size = (1, 1, sizes[3] if mask == "rows" else 1, sizes[4])
        given, described = random(size, "f32", 4), (size, "f32")
    text = text_of([q.shape, k.shape, v.shape, shape], "bf16", described, causal, scale)
    operands = [q, k, v] if given is None else [q, k, v, given]
    (result,) = run_region(FAMILY, text, operands, [shape], level)
    exact = exact_attention(q, k, v, given, causal, scale)
    rounded = exact_attention(q, k, np.abs(v), given, causal, scale)
    allowed = (np.abs(exact) + rounded) * 2.0**-8 + budget(q, k, v, scale)
    assert (np.abs(result.astype(np.float64) - exact) <= allowed).all()
