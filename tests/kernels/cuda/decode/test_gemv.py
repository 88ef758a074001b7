"""Products of a few rows without tensor cores: every lane, tails of both dims, layouts, types, epilogues, rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.gemm_problem import read_gemm_region
from lowerkit.targets.cuda.families.gemm_tiles import asked_gemm
from lowerkit.targets.cuda.families.gemv import GemvFamily, Lane, choose_lane, plan_gemv
from lowerkit.targets.cuda.model.cards import CARDS
from lowerkit.targets.cuda.model.measured_tiles import using_tiles
from lowerkit.targets.cuda.model.products import shortlist
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.kernels.cuda.test_matmul import compare, numbers, product_text
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_with, run_cuda
from tests.support.targets.cuda_rows import spills, with_epilogue

Shape = list[int | str]
BYTES = "transpose_rhs = {rhs}, unsigned = {unsigned}"


def with_lane(view: RegionView, lane: Lane) -> PlannedRegion:
    read = read_gemm_region(view)
    assert not isinstance(read, Refusal)
    return plan_gemv(read.frame, read.problem, read.epilogue, lane, read.result)


def matmul(rows: int, columns: int, depth: int, element: str, *, rhs: bool) -> tuple[RegionView, list[Any]]:
    left: Shape = [rows, depth]
    right: Shape = [columns, depth] if rhs else [depth, columns]
    text = product_text(left, right, [rows, columns], element, rhs=rhs)
    return RegionView.from_text(text, "matmul"), [numbers(left, element), numbers(right, element)]


@pytest.mark.parametrize("rhs", [True, False], ids=["by depth", "by column"])
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 8, 9, 15, 18])
def test_tails_of_columns_and_depth(columns: int, rhs: bool) -> None:
    """A depth for each: shorter than a trip, whole trips, and each tail of a vector."""
    view, inputs = matmul(1, columns, (columns * 37) % 160 + 1, "bf16", rhs=rhs)
    compare(view, with_lane(view, Lane(4, 64, 1) if rhs else Lane(8, 32, 1)), inputs, "sm_80")


@pytest.mark.parametrize(
    "lane", [Lane(1, 256, 1), Lane(2, 512, 4), Lane(16, 256, 8), Lane(8, 128, 2), Lane(32, 64, 4)], ids=str
)
@pytest.mark.parametrize("rhs", [True, False], ids=["by depth", "by column"])
def test_lanes(lane: Lane, rhs: bool) -> None:
    view, inputs = matmul(2, 45, 600, "f16", rhs=rhs)
    compare(view, with_lane(view, lane), inputs, "sm_90")


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("rhs", [True, False], ids=["by depth", "by column"])
def test_types_and_rows(rhs: bool, element: str, rows: int) -> None:
    view, inputs = matmul(rows, 33, 200, element, rhs=rhs)
    read = read_gemm_region(view)
    assert not isinstance(read, Refusal)
    compare(view, with_lane(view, choose_lane(read.problem, CARDS["h200"])[0]), inputs, "sm_90")


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("rhs", [False, True])
def test_bytes(unsigned: bool, rhs: bool) -> None:
    left, right = [2, 150], [21, 150] if rhs else [150, 21]
    text = anchored(
        "integer_matmul",
        [tensor(left, "i8"), tensor(right, "i8")],
        tensor([2, 21], "i32"),
        BYTES.format(rhs=str(rhs).lower(), unsigned=str(unsigned).lower()),
    )
    view = RegionView.from_text(text, "matmul")
    inputs = [numbers(left, "i8"), numbers(right, "i8")]
    compare(view, with_lane(view, Lane(4, 128, 1)), inputs, "sm_90")


@pytest.mark.parametrize("rows", [1, 5])
def test_an_epilogue(rows: int) -> None:
    """A row and a tensor are read, and there are two results."""
    attributes = "accumulate = f32, transpose_lhs = false, transpose_rhs = true"
    view = with_epilogue("matmul", [tensor([rows, 96], "f32"), tensor([40, 96], "f32")], [rows, 40], "f32", attributes)
    shapes = [(rows, 96), (40, 96), (40,), (rows, 40)]
    inputs = [numbers(shape, "f32") for shape in shapes]
    found = run_cuda(compile_with(with_lane(view, Lane(8, 64, 2)), view, "sm_90"), inputs)
    x, w, row, other = (each.astype(np.float64) for each in inputs)
    np.testing.assert_allclose(found[0], x @ w.T * row + other, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(found[1], inputs[3] > 0)


def test_a_batch_of_one_in_front() -> None:
    text = product_text([1, 1, 70], [30, 70], [1, 1, 30], "bf16", rhs=True)
    view = RegionView.from_text(text, "matmul")
    plan, _ = select_kernels(view, "sm_90")
    compare(view, plan, [numbers([1, 1, 70], "bf16"), numbers([30, 70], "bf16")], "sm_90")


REFUSED: dict[str, tuple[Shape, Shape, Shape, str]] = {
    "16 rows; at most 8": ([16, 64], [64, 64], [16, 64], "bf16"),
    "n0 rows; at most 8": (["?", 64], [64, 64], ["?", 64], "bf16"),
    "weights of an open size": ([1, 64], [64, "?"], [1, "?"], "bf16"),
    "several products": ([3, 1, 64], [3, 64, 64], [3, 1, 64], "bf16"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str) -> None:
    left, right, result, element = REFUSED[reason]
    answer = GemvFamily().plan(RegionView.from_text(product_text(left, right, result, element), "matmul"), "sm_90")
    assert isinstance(answer, Refusal) and answer.reason == reason


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
def test_a_tile_that_was_measured_is_taken(level: str) -> None:
    view = RegionView.from_text(product_text([1, 4096], [4096, 4096], [1, 4096], "bf16", rhs=True), "matmul")
    assert select_kernels(view, level)[0].family == "gemv"
    read = read_gemm_region(view)
    assert not isinstance(read, Refusal)
    asked = asked_gemm(read.problem, level)
    with using_tiles({(level, asked): shortlist(asked, level)[0].tile}):
        assert select_kernels(view, level)[0].family == "gemm"


SIZES = [(4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096), (1024, 4096)]
BY_COLUMN = [(14336, 4096), (128256, 4096)]


def test_few_columns_that_are_contiguous_are_left_to_tensor_cores() -> None:
    """Lines of 128 bytes make 16 blocks of them, and K is not split here."""
    text = product_text([1, 4096], [4096, 1024], [1, 1024], "bf16")
    answer = GemvFamily().plan(RegionView.from_text(text, "matmul"), "sm_90")
    assert isinstance(answer, Refusal) and "by tiles for tensor cores" in answer.reason


@pytest.mark.parametrize(
    ("size", "rhs"), [*((size, True) for size in SIZES), *((size, False) for size in BY_COLUMN)], ids=str
)
def test_weights_of_a_decoder_are_read_at_the_bandwidth(size: tuple[int, int], rhs: bool) -> None:
    """What is predicted, without the gap between launches and the first load, is 85 % of the data sheet at least."""
    columns, depth = size
    card = CARDS["h200"]
    right: Shape = [columns, depth] if rhs else [depth, columns]
    view = RegionView.from_text(product_text([1, depth], right, [1, columns], "bf16", rhs=rhs), "matmul")
    read = read_gemm_region(view)
    assert not isinstance(read, Refusal)
    _, seconds = choose_lane(read.problem, card)
    floor = columns * depth * 2 / card.memory
    assert floor < seconds < floor / 0.85 + 1.8e-6
    assert select_kernels(view, "sm_90")[0].family == "gemv"


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rhs", [True, False], ids=["by depth", "by column"])
@pytest.mark.parametrize("rows", [1, 4])
def test_vectors_of_16_bytes_and_no_spills(rows: int, rhs: bool, level: str) -> None:
    columns = 2048 if rhs else 32768
    right: Shape = [columns, 1024] if rhs else [1024, columns]
    text = product_text([rows, 1024], right, [rows, columns], "bf16", rhs=rhs)
    view = RegionView.from_text(text, "matmul")
    plan = GemvFamily().plan(view, level)
    assert isinstance(plan, PlannedRegion), plan
    code = unpack(compile_with(plan, view, level).code, {})
    (variant,) = code.variants
    (name,) = variant.kernels
    assert b"ld.global.v4.b32" in code.compiled(variant, name).ptx
    if ptxas.find_ptxas() is not None:
        assert set(spills(view, level).values()) == {0}
