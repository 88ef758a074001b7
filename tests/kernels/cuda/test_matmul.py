"""Products in Triton on the simulated device: tails of tiles, trips of K, batches, layouts, epilogues, bytes, parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.gemm_problem import read_gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.families.matmul import MatmulFamily, plan_gemm
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES, anchored, tensor
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import compile_with, run_cuda

Shape = list[int | str]
LIMITS = {"f64": 4e-15, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}
FLOAT = "accumulate = f32, transpose_lhs = {lhs}, transpose_rhs = {rhs}"
BYTES = "transpose_rhs = {rhs}, unsigned = {unsigned}"


def product_text(left: Shape, right: Shape, result: Shape, element: str, lhs: bool = False, rhs: bool = False) -> str:
    attributes = FLOAT.format(lhs=str(lhs).lower(), rhs=str(rhs).lower())
    if element == "f64":
        attributes = attributes.replace("accumulate = f32", "accumulate = f64")
    return anchored("matmul", [tensor(left, element), tensor(right, element)], tensor(result, element), attributes)


def with_tile(view: RegionView, tile: GemmTile) -> PlannedRegion:
    assert view.anchor is not None
    frame = Frame(view)
    anchor = view.anchor.operation
    problem, epilogue = read_gemm(frame, anchor), read_epilogue(view, frame, anchor)
    assert not isinstance(problem, Refusal)
    assert not isinstance(epilogue, Refusal)
    return plan_gemm(
        "gemm", frame, problem, epilogue, tile, str(ir.RankedTensorType(anchor.results[0].type).element_type)
    )


def planned(view: RegionView, level: str) -> PlannedRegion:
    answer = MatmulFamily().plan(view, level)
    assert isinstance(answer, PlannedRegion), answer
    return answer


def numbers(shape: Any, element: str) -> Any:
    if element == "i8":
        return RANDOM.integers(-128, 128, shape).astype(np.int8)
    return RANDOM.standard_normal(shape).astype(DTYPES[element])


def compare(view: RegionView, plan: PlannedRegion, inputs: list[Any], level: str) -> None:
    """Runs a region and holds it to float64: errors are counted in sizes of the terms that were added."""
    (found,) = run_cuda(compile_with(plan, view, level), inputs)
    (wanted,) = interpret(view.clone_module(), inputs, function="region")
    element = str(view.results[0].element_type)
    if element == "i32":
        np.testing.assert_array_equal(found, wanted)
        return
    depth = inputs[0].shape[-1]
    limit = LIMITS[element] * max(1.0, depth**0.5)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=LIMITS[element], atol=limit)


TAILS = [
    (1, 16, 16), (16, 16, 1), (33, 40, 16), (31, 7, 33), (32, 32, 32), (65, 33, 64), (40, 100, 70), (70, 31, 96),
]  # fmt: skip


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize("size", TAILS, ids=str)
@pytest.mark.parametrize(("element", "tile"), [
    ("bf16", GemmTile(32, 32, 32, 4, 3)),
    ("f16", GemmTile(64, 32, 32, 4, 2)),
    ("f32", GemmTile(32, 32, 16, 4, 3)),
    ("f64", GemmTile(32, 32, 16, 4, 3)),
])  # fmt: skip
def test_every_tail(level: str, size: tuple[int, int, int], element: str, tile: GemmTile) -> None:
    """Rows, columns and K below, at and beyond a tile; one, two and three steps of K."""
    m, n, k = size
    view = RegionView.from_text(product_text([m, k], [k, n], [m, n], element), "matmul")
    compare(view, with_tile(view, tile), [numbers((m, k), element), numbers((k, n), element)], level)


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize(("m", "n", "k", "flip"), [(33, 16, 32, False), (5, 40, 100, True), (64, 64, 64, True)])
def test_bytes_are_summed_exactly(level: str, unsigned: bool, m: int, n: int, k: int, flip: bool) -> None:
    right: Shape = [n, k] if flip else [k, n]
    attributes = BYTES.format(rhs=str(flip).lower(), unsigned=str(unsigned).lower())
    types = [tensor([m, k], "i8"), tensor(right, "i8")]
    view = RegionView.from_text(anchored("integer_matmul", types, tensor([m, n], "i32"), attributes), "matmul")
    inputs = [numbers((m, k), "i8"), numbers(right, "i8")]
    inputs[0][0], inputs[1][0] = -128, -128
    compare(view, planned(view, level), inputs, level)


LAYOUTS = [
    ([6, 20], [30, 20], [6, 30], False, True),
    ([20, 6], [20, 30], [6, 30], True, False),
    ([3, 5, 20], [20, 24], [3, 5, 24], False, False),
    ([3, 5, 20], [3, 20, 24], [3, 5, 24], False, False),
    ([3, 5, 20], [3, 24, 20], [3, 5, 24], False, True),
    ([2, 1, 5, 20], [1, 3, 20, 24], [2, 3, 5, 24], False, False),
    ([5, 20], [4, 20, 24], [4, 5, 24], False, False),
    ([2, 20, 5], [20, 24], [2, 5, 24], True, False),
]


@pytest.mark.parametrize("element", ["bf16", "f32", "f64"])
@pytest.mark.parametrize(("left", "right", "result", "lhs", "rhs"), LAYOUTS)
def test_layouts_and_batches(left: Shape, right: Shape, result: Shape, lhs: bool, rhs: bool, element: str) -> None:
    view = RegionView.from_text(product_text(left, right, result, element, lhs, rhs), "matmul")
    compare(view, planned(view, "sm_80"), [numbers(left, element), numbers(right, element)], "sm_80")


OPEN = [
    (["?", 24], [24, 40], ["?", 40], False),
    (["?", "?", 24], [24, 40], ["?", "?", 40], False),
    (["?", 5, 24], ["?", 24, 40], ["?", 5, 40], False),
    (["?", "?", 24], ["?", "?", 24], ["?", "?", "?"], True),
    (["?", "?", "?"], ["?", "?", 24], ["?", "?", 24], False),
]


@pytest.mark.parametrize(("left", "right", "result", "rhs"), OPEN)
@pytest.mark.parametrize("size", [1, 3, 33])
def test_open_extents(left: Shape, right: Shape, result: Shape, rhs: bool, size: int) -> None:
    view = RegionView.from_text(product_text(left, right, result, "bf16", rhs=rhs), "matmul")
    shapes = [[size if each == "?" else each for each in shape] for shape in (left, right)]
    compare(view, planned(view, "sm_90"), [numbers(shape, "bf16") for shape in shapes], "sm_90")


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
def test_parts_of_f64_are_doubles(level: str) -> None:
    m, n, k = 5, 20, 256
    view = RegionView.from_text(product_text([m, k], [k, n], [m, n], "f64"), "matmul")
    plan = with_tile(view, GemmTile(16, 16, 16, 4, 3, 4))
    assert plan.function.temporaries == [4 * m * n * 8]
    compare(view, plan, [numbers((m, k), "f64"), numbers((k, n), "f64")], level)


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("m", "n", "k", "split"), [(5, 20, 256, 4), (33, 40, 200, 3), (1, 8, 96, 2)])
def test_split_k(level: str, m: int, n: int, k: int, split: int) -> None:
    text = f"""#map = affine_map<(i, j) -> (i, j)>
    #column = affine_map<(i, j) -> (j)>
    module {{
      func.func @region(%a: tensor<{m}x{k}xbf16>, %b: tensor<{k}x{n}xbf16>, %c: tensor<{n}xbf16>)
          -> tensor<{m}x{n}xbf16> {{
        %0 = "lk.matmul"(%a, %b) {{accumulate = f32, transpose_lhs = false, transpose_rhs = false}}
          : (tensor<{m}x{k}xbf16>, tensor<{k}x{n}xbf16>) -> tensor<{m}x{n}xbf16>
        %e = tensor.empty() : tensor<{m}x{n}xbf16>
        %1 = linalg.generic {{indexing_maps = [#map, #column, #map], iterator_types = ["parallel", "parallel"]}}
            ins(%0, %c : tensor<{m}x{n}xbf16>, tensor<{n}xbf16>) outs(%e : tensor<{m}x{n}xbf16>) {{
        ^bb0(%x: bf16, %y: bf16, %o: bf16):
          %z = arith.addf %x, %y : bf16
          linalg.yield %z : bf16
        }} -> tensor<{m}x{n}xbf16>
        return %1 : tensor<{m}x{n}xbf16>
      }}
    }}"""
    view = RegionView.from_text(text, "matmul")
    plan = with_tile(view, GemmTile(16, 16, 16, 4, 3, split))
    assert len(plan.function.launches) == 2
    inputs = [numbers(shape, "bf16") for shape in ((m, k), (k, n), (n,))]
    compare(view, plan, inputs, level)


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("element", "m", "n", "k"),
    [
        ("bf16", 1024, 3072, 768),
        ("bf16", 4096, 4096, 4096),
        ("f32", 1024, 768, 768),
        ("f64", 1024, 768, 768),
    ],
)
def test_no_kernel_of_a_large_product_spills(element: str, m: int, n: int, k: int, level: str) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    view = RegionView.from_text(product_text([m, k], [k, n], [m, n], element), "matmul")
    (variant,) = unpack(compile_with(planned(view, level), view, level).code, {}).variants
    for name, place in variant.kernels.items():
        assert place.kernel.spills == 0, name
        assert place.kernel.registers > 0, name


def test_what_is_refused() -> None:
    wide = product_text([4, 8], [8, 3], [4, 3], "f32").replace("accumulate = f32", "accumulate = f64")
    for text, words in (
        (wide, "sums in f64"),
        (product_text([4, 0], [0, 3], [4, 3], "f32"), "an empty product"),
    ):
        answer = MatmulFamily().plan(RegionView.from_text(text, "matmul"), "sm_80")
        assert isinstance(answer, Refusal)
        assert words in answer.reason
