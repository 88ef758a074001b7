"""Attention on the simulated card against the reference of the op: masks, causal order, groups, open extents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.reference.rows import attention as reference
from lowerkit.targets.cuda.families.attention.attention import FEW, AttentionFamily
from lowerkit.targets.cuda.families.attention.tiles import MOST_SPLITS, runs_of
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import Array, anchored, random, tensor
from tests.support.targets.cuda_kernels import compile_with, run_cuda

FAMILY = AttentionFamily()
TOLERANCE = {"f32": 4e-6, "f16": 3e-3, "bf16": 2e-2}
Sizes = tuple[int, int, int, int, int, int, int]
"""B, H, Hk, M, T, D, Dv."""
Mask = tuple[tuple[Any, ...], str]


def text_of(
    shapes: list[Any],
    element: str,
    mask: Mask | None = None,
    *,
    causal: bool = False,
    masking: str = "add",
    fill: float = 0.0,
    empty_rows: str = "zero",
) -> str:
    types = [tensor(shape, element) for shape in shapes]
    number = "0xFFF0000000000000" if fill == -math.inf else f"{fill:.6f}"
    attributes = (
        f'scale = 0.25 : f64, causal = {str(causal).lower()}, masking = "{masking}", fill = {number} : f64, '
        f'empty_rows = "{empty_rows}", operandSegmentSizes = array<i32: 1, 1, 1, {int(mask is not None)}>'
    )
    return anchored("attention", types[:3] + ([tensor(*mask)] if mask else []), types[3], attributes)


def shapes_of(sizes: Sizes) -> list[tuple[int, ...]]:
    batch, heads, key_heads, queries, keys, depth, value_depth = sizes
    shared = (batch, key_heads, keys)
    return [
        (batch, heads, queries, depth),
        (*shared, depth),
        (*shared, value_depth),
        (batch, heads, queries, value_depth),
    ]


def operands_of(sizes: Sizes, element: str) -> list[Array]:
    return [random(shape, element, seed) for seed, shape in enumerate(shapes_of(sizes)[:3])]


def planned(text: str, level: str) -> tuple[RegionView, PlannedRegion]:
    view = RegionView.from_text(text, "attention")
    answer = FAMILY.plan(view, level)
    assert isinstance(answer, PlannedRegion), answer
    return view, answer


def check(text: str, operands: list[Array], level: str, element: str, **parameters: Any) -> Array:
    """Runs a region and holds it against the reference; NaN must be where NaN is."""
    view, plan = planned(text, level)
    (found,) = run_cuda(compile_with(plan, view, level), operands)
    q, k, v = operands[:3]
    mask = operands[3] if len(operands) == 4 else None
    defaults: dict[str, Any] = {"causal": False, "masking": "add", "fill": 0.0, "empty_rows": "zero"}
    with np.errstate(invalid="ignore"):
        exact = reference(q, k, v, mask, scale=0.25, **(defaults | parameters))
    limit = TOLERANCE[element]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=limit, atol=limit)
    return found


@pytest.mark.variants("level")
@pytest.mark.parametrize(
    ("level", "sizes", "element", "causal"),
    [
        ("sm_80", (1, 2, 2, 70, 130, 16, 16), "bf16", False),
        ("sm_90", (1, 2, 2, 70, 130, 16, 16), "bf16", False),
        ("sm_90", (2, 2, 1, 70, 70, 20, 24), "f16", True),
        ("sm_80", (1, 2, 2, 130, 40, 16, 16), "bf16", True),
        ("sm_90", (1, 1, 1, 70, 64, 20, 72), "bf16", False),
        ("sm_80", (1, 2, 1, 70, 45, 40, 16), "f32", True),
        ("sm_90", (1, 2, 1, 70, 45, 40, 16), "f32", True),
        ("sm_80", (1, 1, 1, 1, 1, 1, 1), "f32", False),
    ],
)
def test_tiles_of_queries(level: str, sizes: Sizes, element: str, causal: bool) -> None:
    text = text_of(shapes_of(sizes), element, causal=causal)
    check(text, operands_of(sizes, element), level, element, causal=causal)


@pytest.mark.parametrize(
    ("sizes", "shape", "kind", "causal"),
    [
        ((2, 4, 2, 20, 40, 16, 16), (2, 4, 20, 40), "f32", False),
        ((2, 4, 2, 3, 600, 16, 16), (2, 1, 3, 600), "i1", False),
        ((2, 4, 2, 3, 40, 16, 16), (1, 4, 3, 40), "i1", True),
        ((1, 2, 2, 20, 37, 16, 16), (20, 1), "f32", True),
    ],
)
def test_masks(sizes: Sizes, shape: tuple[int, ...], kind: str, causal: bool) -> None:
    mask = random(shape, kind, 4)
    if kind == "f32":
        mask.flat[::3] = -np.inf
    if len(shape) == 4:
        mask[..., 0, :] = False if kind == "i1" else -np.inf  # the first row sees nothing
    text = text_of(shapes_of(sizes), "bf16", (shape, kind), causal=causal)
    found = check(text, [*operands_of(sizes, "bf16"), mask], "sm_80", "bf16", causal=causal)
    if len(shape) == 4:
        assert not found[:, :, 0].any()


@pytest.mark.parametrize(
    ("level", "sizes", "splits"),
    [("sm_80", (1, 4, 2, 1, 530, 16, 20), 3), ("sm_90", (1, 3, 1, 5, 300, 16, 16), 2)],
)
def test_few_queries_deal_the_keys_out(level: str, sizes: Sizes, splits: int) -> None:
    text = text_of(shapes_of(sizes), "bf16")
    check(text, operands_of(sizes, "bf16"), level, "bf16")
    _, plan = planned(text, level)
    first, second = plan.function.launches
    batch, heads, key_heads, queries, keys, _, value_depth = sizes
    assert first.blocks == batch * key_heads * -(-queries * heads // key_heads // 16) * splits
    assert second.blocks == batch * heads * queries
    assert splits == min(MOST_SPLITS, -(-keys // 256))
    assert plan.function.temporaries[2] == 4 * splits * batch * heads * queries * value_depth


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 300), (FEW, 40), (FEW + 1, 33), (2, 0), (0, 5)], ids=lambda number: str(number)
)
def test_open_extents(queries: int, keys: int) -> None:
    """One plan for a prompt and for a token; without keys all rows are zero, whatever rows of -inf are."""
    shapes: list[Any] = [("?", 4, "?", 16), ("?", 2, "?", 16), ("?", 2, "?", 16), ("?", 4, "?", 16)]
    text = text_of(shapes, "bf16", (("?", 1, "?", "?"), "i1"), empty_rows="nan")
    sizes = (2, 4, 2, queries, keys, 16, 16)
    mask = random((2, 1, queries, keys), "i1", 4)
    mask[1, :, queries // 2 :] = False
    operands = [*operands_of(sizes, "bf16"), mask]
    check(text, operands, "sm_80", "bf16", empty_rows="nan")


@pytest.mark.parametrize(("queries", "keys"), [(3, 40), (20, 12), (70, 90)])
def test_open_extents_in_causal_order(queries: int, keys: int) -> None:
    shapes: list[Any] = [(1, 4, "?", 16), (1, 2, "?", 16), (1, 2, "?", 16), (1, 4, "?", 16)]
    operands = operands_of((1, 4, 2, queries, keys, 16, 16), "bf16")
    check(text_of(shapes, "bf16", causal=True), operands, "sm_80", "bf16", causal=True)


@pytest.mark.parametrize("rows", [1, 20])
def test_an_open_extent_of_a_mask_may_be_one(rows: int) -> None:
    sizes = (1, 2, 2, 20, 37, 16, 16)
    text = text_of(shapes_of(sizes), "f32", ((1, 1, "?", 37), "f32"))
    check(text, [*operands_of(sizes, "f32"), random((1, 1, rows, 37), "f32", 4)], "sm_80", "f32")


@pytest.mark.parametrize(
    ("masking", "fill", "empty_rows", "queries", "keys"),
    [
        ("add", 0.0, "zero", 20, 12),
        ("add", 0.0, "nan", 3, 300),
        ("select", -math.inf, "nan", 20, 12),
        ("select", float(np.finfo(np.float32).min), "zero", 20, 12),
        ("select", 1.5, "guarded", 3, 300),
    ],
)
def test_rows_without_keys_and_what_is_hidden(
    masking: str, fill: float, empty_rows: str, queries: int, keys: int
) -> None:
    """Rows of -inf, rows with NaN, hidden NaN and infinity; one pass, and partial results that are combined."""
    sizes = (1, 2, 2, queries, keys, 16, 16)
    q, k, v = operands_of(sizes, "f32")
    q[0, 0, 0, 0] = np.nan
    k[0, :, 4] = np.inf
    k[0, 1, 5] = np.nan
    mask = np.ones((1, 1, queries, keys), np.bool_)
    mask[..., 4:6] = False
    mask[:, :, queries // 2, :] = False
    parameters: dict[str, Any] = {"masking": masking, "fill": fill, "empty_rows": empty_rows}
    check(
        text_of(shapes_of(sizes), "f32", (mask.shape, "i1"), **parameters),
        [q, k, v, mask],
        "sm_80",
        "f32",
        **parameters,
    )


def test_a_mask_of_the_lowest_float_hides_nothing_where_all_is_hidden() -> None:
    """A sum with the lowest float is it; times log2(e) it would be -inf, and the row one without keys."""
    sizes = (1, 1, 1, 20, 20, 16, 16)
    mask = np.zeros((1, 1, 20, 20), np.float32)
    mask[..., 5, :] = np.finfo(np.float32).min
    q, k, v = operands_of(sizes, "f32")
    view, plan = planned(text_of(shapes_of(sizes), "f32", (mask.shape, "f32")), "sm_80")
    (found,) = run_cuda(compile_with(plan, view, "sm_80"), [q, k, v, mask])
    np.testing.assert_allclose(found[0, 0, 5], v[0, 0].mean(0), rtol=1e-5, atol=1e-6)


def test_values_behind_the_causal_ones_are_not_read() -> None:
    sizes = (1, 1, 1, 512, 512, 16, 16)
    q, k, v = operands_of(sizes, "bf16")
    v[0, 0, 300:] = np.nan
    view, plan = planned(text_of(shapes_of(sizes), "bf16", causal=True), "sm_80")
    (found,) = run_cuda(compile_with(plan, view, "sm_80"), [q, k, v])
    assert np.isfinite(found[0, 0, :256].astype(np.float32)).all()
    assert np.isnan(found[0, 0, 300:].astype(np.float32)).all()


EPILOGUE = """func.func @region(%q: tensor<2x4x{m}x16xbf16>, %k: tensor<2x2x300x16xbf16>, %v: tensor<2x2x300x20xbf16>,
    %b: tensor<20xbf16>) -> tensor<2x{m}x4x20xbf16> {{
  %r = "lk.attention"(%q, %k, %v) {{scale = 0.25 : f64, causal = false, masking = "add",
    fill = 0.0 : f64, empty_rows = "zero", operandSegmentSizes = array<i32: 1, 1, 1, 0>}}
    : (tensor<2x4x{m}x16xbf16>, tensor<2x2x300x16xbf16>, tensor<2x2x300x20xbf16>) -> tensor<2x4x{m}x20xbf16>
  %e = tensor.empty() : tensor<2x{m}x4x20xbf16>
  %o = linalg.generic {{indexing_maps = [affine_map<(b, s, h, d) -> (b, h, s, d)>, affine_map<(b, s, h, d) -> (d)>,
    affine_map<(b, s, h, d) -> (b, s, h, d)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
    ins(%r, %b : tensor<2x4x{m}x20xbf16>, tensor<20xbf16>) outs(%e : tensor<2x{m}x4x20xbf16>) {{
  ^bb0(%x: bf16, %y: bf16, %z: bf16):
    %s = arith.addf %x, %y : bf16
    linalg.yield %s : bf16
  }} -> tensor<2x{m}x4x20xbf16>
  return %o : tensor<2x{m}x4x20xbf16>
}}"""


@pytest.mark.parametrize("queries", [3, 20])
def test_epilogue_moves_heads_inwards(queries: int) -> None:
    q, k, v = operands_of((2, 4, 2, queries, 300, 16, 20), "bf16")
    bias = random((20,), "bf16", 5)
    view, plan = planned(EPILOGUE.format(m=queries), "sm_90")
    (found,) = run_cuda(compile_with(plan, view, "sm_90"), [q, k, v, bias])
    exact = reference(q, k, v, None, scale=0.25, causal=False, masking="add", fill=0.0, empty_rows="zero")
    exact = exact.transpose(0, 2, 1, 3) + bias.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("shapes", "element", "reason"),
    [
        ([(1, 1, 4, 4)] * 4, "f64", "attention of f64"),
        ([(1, 1, 4, 300)] * 4, "f32", "300 features"),
        ([(1, "?", 4, 8)] * 4, "f32", "number of heads is open"),
        ([(1, 1, 4, "?")] * 4, "f32", "number of features is open"),
        ([(1, 1, 4, 8), (1, 1, 0, 8), (1, 1, 0, 8), (1, 1, 4, 8)], "f32", "no keys"),
    ],
)
def test_refusals(shapes: list[Any], element: str, reason: str) -> None:
    answer = FAMILY.plan(RegionView.from_text(text_of(shapes, element), "attention"), "sm_80")
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


@pytest.mark.parametrize(("count", "runs"), [(64, [(0, 64)]), (80, [(0, 64), (64, 16)]), (250, [(0, 250)])])
def test_runs_of_features_pad_little(count: int, runs: list[tuple[int, int]]) -> None:
    assert runs_of(count, 256) == runs


FULL = {
    "bert": (text_of(shapes_of((8, 12, 12, 512, 512, 64, 64)), "bf16", ((8, 1, 512, 512), "i1"))),
    "llama prompt": (text_of(shapes_of((1, 32, 8, 2048, 2048, 128, 128)), "bf16", causal=True)),
    "llama token": (text_of(shapes_of((1, 32, 8, 1, 4096, 128, 128)), "bf16", ((1, 1, 1, 4096), "i1"))),
    "bert f32": (text_of(shapes_of((8, 12, 12, 512, 512, 64, 64)), "f32", ((8, 1, 512, 512), "i1"))),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_no_register_overflows_at_full_size(level: str, name: str) -> None:
    assembler = ptxas.find_ptxas() or toolchain.bundled_ptxas()
    assert assembler is not None
    _, plan = planned(FULL[name], level)
    for kernel in plan.kernels.values():
        assert isinstance(kernel, FastKernel)
        reply = toolchain.compile_to_ptx(kernel.kernel, "kernel", level)
        assert ptxas.assemble(assembler, reply.ptx, level).spills == 0
        assert reply.shared <= card_of(level).block_shared
