"""Products whose operands the TMA unit loads: tails, trips of K, several tiles a block, layouts, batches, epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.gemm_maps import describe
from lowerkit.targets.cuda.families.gemm_problem import read_gemm, read_gemm_region
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.families.matmul import plan_gemm
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.cuda.witness.interpreted import interpreter_witness
from lowerkit.targets.cuda.witness.placed import place_region
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.kernels.cuda.test_matmul import Shape, compare, numbers, planned, product_text
from tests.support.cuda.product_epilogues import EPILOGUES, product_with_epilogue
from tests.support.region_kernels import DTYPES, Array
from tests.support.targets.cuda_kernels import compile_with, run_cuda

LEVEL = "sm_90"
SMALL = GemmTile(64, 32, 64, 4, 3, tma=True)
RUNS = GemmTile(64, 96, 32, 4, 3, tma=True)
TALL = GemmTile(128, 64, 64, 8, 4, tma=True)
SEVERAL = GemmTile(64, 32, 64, 4, 4, tma=True, persistent=True)


def with_tile(view: RegionView, tile: GemmTile, processors: int = 2) -> PlannedRegion:
    """Plans a product with a tile; a persistent kernel has few blocks, so that each makes several tiles."""
    read = read_gemm_region(view)
    assert not isinstance(read, Refusal)
    return plan_gemm("gemm", read.frame, read.problem, read.epilogue, tile, read.result, processors)


def matrix(view: RegionView, tile: GemmTile, *shapes: Sequence[int], element: str = "bf16") -> None:
    compare(view, with_tile(view, tile), [numbers(shape, element) for shape in shapes], LEVEL)


@pytest.mark.parametrize(("element", "tile"), [("bf16", SMALL), ("f16", RUNS), ("bf16", TALL), ("f16", SEVERAL)])
@pytest.mark.parametrize("size", [(1, 8, 8), (65, 40, 72), (63, 96, 136), (130, 200, 192)], ids=str)
def test_every_tail(size: tuple[int, int, int], element: str, tile: GemmTile) -> None:
    """Rows, columns and K below, at and beyond a tile and a vector; one to four steps of K."""
    m, n, k = size
    view = RegionView.from_text(product_text([m, k], [k, n], [m, n], element), "matmul")
    matrix(view, tile, (m, k), (k, n), element=element)


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_rows_that_begin_anywhere_are_not_described(element: str) -> None:
    view = RegionView.from_text(product_text(["?", "?"], ["?", "?"], ["?", "?"], element), "matmul")
    assert isinstance(describe_of(view), Refusal)


@pytest.mark.parametrize("tile", [SMALL, SEVERAL, pytest.param(RUNS, marks=pytest.mark.exhaustive)])
def test_open_rows_and_trips_of_k(tile: GemmTile) -> None:
    """One kernel for each number of rows, none and many; K of none, one and two steps."""
    view = RegionView.from_text(product_text(["?", 72], [72, 104], ["?", 104], "bf16"), "matmul")
    for rows in (0, 1, 64, 129):
        matrix(view, tile, (rows, 72), (72, 104))
    view = RegionView.from_text(product_text(["?", 8], ["?", 104], [8, 104], "bf16", lhs=True), "matmul")
    for depth in (0, 1, 64, 65, 128):
        matrix(view, tile, (depth, 8), (depth, 104))


def test_a_smaller_card_gets_fewer_blocks() -> None:
    view = RegionView.from_text(product_text([200, 72], [72, 104], [200, 104], "bf16"), "matmul")
    inputs = [numbers(shape, "bf16") for shape in ([200, 72], [72, 104])]
    region = compile_with(with_tile(view, SEVERAL, 132), view, LEVEL)
    started: list[int] = []
    results: list[Array] = []
    for processors in (0, 3):
        device = SimulatedCudaDevice(LEVEL)
        device.driver.processors = processors
        with pytest.MonkeyPatch.context() as patch:
            launch = device.driver.launch

            def counted(kernel: Any, blocks: int, *arguments: Any, launch: Any = launch, **options: Any) -> None:
                started.append(blocks)
                launch(kernel, blocks, *arguments, **options)

            patch.setattr(device.driver, "launch", counted)
            results += run_cuda(region, inputs, device)
    assert started == [4 * 4, 3]
    np.testing.assert_array_equal(results[0], results[1])


LAYOUTS: list[tuple[Shape, Shape, Shape, bool, bool]] = [
    ([40, 72], [104, 72], [40, 104], False, True),
    ([72, 40], [72, 104], [40, 104], True, False),
    ([72, 40], [104, 72], [40, 104], True, True),
    ([3, 40, 72], [72, 104], [3, 40, 104], False, False),
    ([3, 40, 72], [3, 72, 104], [3, 40, 104], False, False),
    ([3, 40, 72], [3, 104, 72], [3, 40, 104], False, True),
    ([2, 3, 40, 72], [2, 3, 72, 104], [2, 3, 40, 104], False, False),
    ([2, 1, 40, 72], [2, 1, 72, 104], [2, 1, 40, 104], False, False),
    ([40, 72], [4, 72, 104], [4, 40, 104], False, False),
    ([2, 72, 40], [72, 104], [2, 40, 104], True, False),
]


@pytest.mark.parametrize(("left", "right", "result", "lhs", "rhs"), LAYOUTS)
def test_layouts_and_batches(left: Shape, right: Shape, result: Shape, lhs: bool, rhs: bool) -> None:
    view = RegionView.from_text(product_text(left, right, result, "bf16", lhs, rhs), "matmul")
    plan = with_tile(view, SEVERAL if len(result) > 3 else SMALL)
    compare(view, plan, [numbers(left, "bf16"), numbers(right, "bf16")], LEVEL)


@pytest.mark.parametrize("kind", EPILOGUES)
@pytest.mark.parametrize("tile", [RUNS, SEVERAL, msgspec.structs.replace(SMALL, split=2)])
def test_epilogues_and_parts_of_k(kind: str, tile: GemmTile) -> None:
    m, n, k = 70, 104, 136
    view = RegionView.from_text(product_with_epilogue(kind, m, n, k), "matmul")
    plan = with_tile(view, tile)
    assert len(plan.function.launches) == (2 if tile.split > 1 else 1)
    shapes = [(m, k), (k, n), (n,), (m, n)][: 4 if kind == "residual" else 3]
    inputs = [0.5 * np.asarray(numbers(shape, "f32")) for shape in shapes]
    narrow = [each.astype(DTYPES["bf16"]) for each in inputs]
    (found,) = run_cuda(compile_with(plan, view, LEVEL), narrow)
    witness = interpreter_witness(place_region(view, plan, narrow))
    (wanted,) = interpret(view.clone_module(), narrow, function="region")
    assert witness.results, witness.missing
    for each in (found, witness.results[0]):
        np.testing.assert_allclose(np.asarray(each, np.float64), wanted.astype(np.float64), rtol=1.6e-2, atol=1e-1)


def describe_of(view: RegionView) -> Any:
    assert view.anchor is not None
    problem = read_gemm(Frame(view), view.anchor.operation)
    assert not isinstance(problem, Refusal)
    return describe(problem)


REFUSED: list[tuple[Shape, Shape, Shape, str, bool, str]] = [
    ([40, 72], [72, 104], [40, 104], "f32", False, "elements of f32"),
    ([40, 70], [70, 104], [40, 104], "bf16", False, "multiples of 16 bytes"),
    ([40, 72], [72, 100], [40, 100], "bf16", False, "multiples of 16 bytes"),
    ([40, "?"], ["?", 104], [40, 104], "bf16", False, "multiples of 16 bytes"),
    ([1, 3, 40, 72], [2, 3, 72, 104], [2, 3, 40, 104], "bf16", False, "do not follow one another"),
]


@pytest.mark.parametrize(("left", "right", "result", "element", "rhs", "words"), REFUSED)
def test_what_the_unit_cannot_load(
    left: Shape, right: Shape, result: Shape, element: str, rhs: bool, words: str
) -> None:
    view = RegionView.from_text(product_text(left, right, result, element, rhs=rhs), "matmul")
    refusal = describe_of(view)
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert not any(launch.maps for launch in planned(view, LEVEL).function.launches)


def test_only_hopper_gets_such_kernels() -> None:
    view = RegionView.from_text(product_text([4096, 4096], [4096, 4096], [4096, 4096], "bf16"), "matmul")
    for level in ("sm_80", "sm_89", LEVEL, "sm_100", "sm_120"):
        plan = planned(view, level)
        assert bool(plan.function.launches[0].maps) == (level == LEVEL)
        assert ("TMA, persistent" in plan.note) == (level == LEVEL)
    (launch,) = planned(view, LEVEL).function.launches
    assert launch.blocks == 132


HOPPER_TILE = GemmTile(128, 256, 64, 8, 4, tma=True, persistent=True)
LARGE = [
    (HOPPER_TILE, "residual"),
    (HOPPER_TILE, "wide"),
    pytest.param(GemmTile(128, 128, 128, 8, 3, tma=True, persistent=True), "residual", marks=pytest.mark.exhaustive),
    pytest.param(GemmTile(128, 256, 64, 8, 4, tma=True), "gelu", marks=pytest.mark.exhaustive),
    (GemmTile(256, 192, 64, 8, 4, tma=True), "gelu"),
]


@pytest.mark.parametrize(("tile", "kind"), LARGE)
def test_tensor_cores_run_ahead_of_what_is_stored(tile: GemmTile, kind: str) -> None:
    """No spills, no product that waits for the one before, 16 bytes to each store, no operand in registers."""
    assembler = ptxas.find_ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas")
    view = RegionView.from_text(product_with_epilogue(kind, "?", 4096, 4096), "matmul")
    ((name, kernel),) = with_tile(view, tile).kernels.items()
    assert isinstance(kernel, FastKernel)
    reply = toolchain.compile_to_ptx(kernel.kernel, name, LEVEL)
    code = ptxas.assemble(assembler, reply.ptx, LEVEL)
    assert (code.spills, code.serialized) == (0, False)
    assert reply.shared <= 227 << 10
    assert "ldmatrix" not in reply.ptx.split("wgmma.wait_group.sync.aligned 0")[0]
    stores = [line for line in reply.ptx.splitlines() if "st.global" in line]
    assert stores and all("st.global.v4.b32" in line for line in stores)


def test_what_ptxas_says_of_products_that_wait_is_understood() -> None:
    """The kernel without the line that nothing is moved across."""
    assembler = ptxas.find_ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas")
    view = RegionView.from_text(product_with_epilogue("residual", "?", 4096, 4096), "matmul")
    ((name, kernel),) = with_tile(view, HOPPER_TILE).kernels.items()
    assert isinstance(kernel, FastKernel)
    lines = [line for line in kernel.kernel.source.splitlines() if "inline_asm" not in line]
    moved = msgspec.structs.replace(kernel.kernel, source="\n".join(lines) + "\n")
    assert ptxas.assemble(assembler, toolchain.compile_to_ptx(moved, name, LEVEL).ptx, LEVEL).serialized


def test_a_model_gets_a_tile_that_ptxas_takes() -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    view = RegionView.from_text(product_text([1024, 768], [768, 3072], [1024, 3072], "bf16"), "matmul")
    plan = planned(view, LEVEL)
    assert "128 x 192 x 64, 8 warps, 4 stages, TMA" in plan.note
    (variant,) = unpack(compile_with(plan, view, LEVEL).code, {}).variants
    for name, place in variant.kernels.items():
        assert place.kernel.spills == 0, name
