"""Products, convolutions and attention of the families, compiled to tcgen05 and held to the interpreter in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.families.windows import conv as conv_family
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.region_view import RegionView
from tests.kernels.cuda import test_attention as attention
from tests.kernels.cuda import test_matmul as matmul
from tests.kernels.cuda.test_conv import conv
from tests.support.cuda.proofs.cases import all_cases
from tests.support.cuda.proofs.prover import Proof
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_with
from tests.support.targets.cuda_windows import hold, planned

LEVEL = "sm_100"


def kinds(planned: PlannedRegion, view: RegionView) -> set[str]:
    """Returns what the tensor cores multiply in the kernels of a region; the lint must find nothing in them."""
    read = unpack(compile_with(planned, view, LEVEL).code, {})
    (variant,) = read.variants
    texts = [read.compiled(variant, kernel).ptx.decode() for kernel in variant.kernels]
    assert [str(finding) for text in texts for finding in check(text)] == []
    return {kind for text in texts for kind in re.findall(r"tcgen05\.mma\.cta_group::1\.kind::(\w+)", text)}


@pytest.mark.parametrize(
    ("element", "tile", "sizes", "flips"),
    [
        ("bf16", GemmTile(64, 32, 32, 4, 3), (70, 40, 100), {}),
        ("bf16", GemmTile(128, 128, 64, 8, 3), (130, 136, 200), {"rhs": True}),
        ("f16", GemmTile(128, 64, 32, 4, 2), (129, 72, 40), {"lhs": True}),
    ],
)
def test_products(element: str, tile: GemmTile, sizes: tuple[int, int, int], flips: dict[str, bool]) -> None:
    """Tails of rows, columns and K; both factors along K and across it."""
    m, n, k = sizes
    left: list[int | str] = [k, m] if flips.get("lhs") else [m, k]
    right: list[int | str] = [n, k] if flips.get("rhs") else [k, n]
    view = RegionView.from_text(matmul.product_text(left, right, [m, n], element, **flips), "matmul")
    plan = matmul.with_tile(view, tile)
    assert kinds(plan, view) == {"f16"}
    matmul.compare(view, plan, [matmul.numbers(left, element), matmul.numbers(right, element)], LEVEL)


def test_products_of_bytes() -> None:
    types = [tensor([70, 160], "i8"), tensor([72, 160], "i8")]
    attributes = matmul.BYTES.format(rhs="true", unsigned="true")
    text = anchored("integer_matmul", types, tensor([70, 72], "i32"), attributes)
    view = RegionView.from_text(text, "matmul")
    plan = matmul.with_tile(view, GemmTile(64, 64, 64, 4, 3))
    assert kinds(plan, view) == {"i8"}
    matmul.compare(view, plan, [matmul.numbers((70, 160), "i8"), matmul.numbers((72, 160), "i8")], LEVEL)


def test_open_rows_of_a_weight() -> None:
    """Every run of the sweep of the family's proof, with all checks on."""
    (found,) = Proof(all_cases()["gemm: f16, 64 x 64 x 32, open rows, N 64, K 160"], LEVEL).prove(0)
    assert found.runs > 3 and found.coverage > 0.97


@pytest.mark.parametrize("family", sorted({each.family for each in all_cases().values()} - {"attention", "gemm"}))
def test_every_family(family: str) -> None:
    """The first proof of each: pairs of f32, sums of a narrow value and f32, extremes of a warp."""
    case = next(each for each in all_cases().values() if each.family == family)
    found = Proof(case, LEVEL).prove(0)
    assert all(each.runs for each in found)


@pytest.mark.parametrize(
    ("shape", "taps", "element", "options"),
    [
        ((1, 9, 10, 64), (40, 64, 3, 3), "bf16", {"padding": 1}),
        ((2, 15, 17, 3), (40, 3, 7, 7), "f16", {"strides": 2, "padding": 3}),
    ],
)
def test_convolutions(
    monkeypatch: pytest.MonkeyPatch, shape: Sequence[int], taps: Sequence[int], element: str, options: dict[str, Any]
) -> None:
    """Within taps and flat; more pixels than the tile has rows."""
    choose = conv_family.choose_conv_tile

    def larger(*asked: Any) -> Any:
        return msgspec.structs.replace(choose(*asked), m=64, n=32, k=64, warps=4, stages=3, splits=1)

    monkeypatch.setattr(conv_family, "choose_conv_tile", larger)
    view = conv(shape, taps, element, **options)
    assert kinds(planned(view, LEVEL), view) == {"f16"}
    hold(view, "conv", [shape, taps], LEVEL)


@pytest.mark.parametrize(
    ("sizes", "element", "kind"),
    [((1, 2, 1, 140, 140, 40, 64), "f16", "f16"), ((1, 1, 1, 70, 75, 20, 24), "f32", "tf32")],
)
def test_attention(sizes: Any, element: str, kind: str) -> None:
    """Weights are a factor in tensor memory; products of f32 are three of tf32."""
    text = attention.text_of(attention.shapes_of(sizes), element, causal=True)
    view, plan = attention.planned(text, LEVEL)
    assert kinds(plan, view) == {kind}
    attention.check(text, attention.operands_of(sizes, element), LEVEL, element, causal=True)


def test_attention_with_fewer_keys_than_a_tile() -> None:
    """The loop over whole tiles makes no trip: what is loaded in front of it is NaN, and nobody uses it."""
    sizes = (1, 2, 2, 140, 30, 16, 16)
    text = attention.text_of(attention.shapes_of(sizes), "bf16")
    found = attention.check(text, attention.operands_of(sizes, "bf16"), LEVEL, "bf16")
    assert np.isfinite(found.astype(np.float64)).all()
