"""Matmul kernels against eager: shapes, layouts, dtypes, epilogues, CPU levels, dynamic rows, task ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lowerkit.targets.cpu.gemm.matmul import MatmulFamily
from lowerkit.targets.plan import Refusal
from tests.support.kernels import (
    ENDS,
    LEVELS,
    Epilogue,
    Side,
    Sums,
    apply_epilogue,
    at_levels,
    on_tiles,
    plan_region,
    random_array,
    region_text,
    require_near,
    run_plan,
    sums_of,
    tensor,
    to_torch,
)

BARE = Epilogue()


@dataclass(frozen=True)
class Case:
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    weight: bool = True
    element: str = "f32"
    epilogue: Epilogue = BARE
    dynamic_rows: bool = False
    ranges: int = 1

    @property
    def result(self) -> tuple[int, ...]:
        batch = np.broadcast_shapes(self.lhs[:-2], self.rhs[:-2])
        rows = self.lhs[-1 if self.transpose_lhs else -2]
        return (*batch, rows, self.rhs[-2 if self.transpose_rhs else -1])

    def text(self) -> str:
        dynamic = (0,) if self.dynamic_rows else ()
        sums = "f64" if self.element == "f64" else "f32"
        anchor = (
            f'"lk.matmul"(%arg0, %arg1) {{transpose_lhs = {str(self.transpose_lhs).lower()}, '
            f"transpose_rhs = {str(self.transpose_rhs).lower()}, accumulate = {sums}}}"
        )
        operands = [tensor(self.lhs, self.element, dynamic), tensor(self.rhs, self.element)]
        return region_text(anchor, operands, self.result, self.element, self.epilogue, dynamic)

    def check(self, level: str) -> None:
        generator = np.random.default_rng(0)
        arrays = [random_array(generator, shape, self.element) for shape in (self.lhs, self.rhs)]
        sides = [random_array(generator, side.shape, self.element) for side in self.epilogue.sides]
        names = ["", "w" if self.weight else "", *("s" if side.weight else "" for side in self.epilogue.sides)]
        plan = plan_region(MatmulFamily(), self.text(), "matmul", names, level)
        assert not isinstance(plan, Refusal), plan.reason
        assert (1 in plan.packings) == self.weight
        dims: list[int] = []
        if self.dynamic_rows:
            full = sum(side.shape[0] == self.result[0] and 0 in side.axes for side in self.epilogue.sides)
            dims = [self.lhs[0]] * (2 + full + self.epilogue.both)
        count = 2 if self.epilogue.both else 1
        outputs = run_plan(plan, [*arrays, *sides], [(self.result, self.element)] * count, level, dims, self.ranges)

        def product(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
            return (lhs.mT if self.transpose_lhs else lhs) @ (rhs.mT if self.transpose_rhs else rhs)

        lhs, rhs = (to_torch(array).double() for array in arrays)
        exact, squares = product(lhs, rhs), product(lhs**2, rhs**2)
        length = self.lhs[-2 if self.transpose_lhs else -1]
        if self.epilogue.both:
            require_near(outputs[1], exact, self.element, BARE, Sums(squares, length))
        spread = [to_torch(side).double() for side in sides]
        exact = apply_epilogue(exact, self.epilogue, spread)
        require_near(outputs[0], exact, self.element, self.epilogue, sums_of(squares, length, self.epilogue, spread))


def bias(columns: int, rank: int = 2) -> Side:
    return Side("addf", (rank - 1,), (columns,), weight=True)


CASES = {
    "rows_divide_unevenly": Case((128, 96), (96, 96)),
    "all_edges": Case((37, 50), (50, 70), epilogue=Epilogue((bias(70),), "relu")),
    "one_element": Case((1, 1), (1, 1)),
    "one_column": Case((3, 7), (7, 1), epilogue=Epilogue((bias(1),))),
    "one_row": Case((1, 70), (70, 1000), epilogue=Epilogue((bias(1000),))),
    "three_rows": Case((3, 33), (33, 200)),
    "linear_layout": Case((20, 64), (48, 64), transpose_rhs=True, epilogue=Epilogue((bias(48),), "gelu")),
    "left_transposed": Case((50, 37), (50, 70), transpose_lhs=True),
    "rows_evict_each_other": Case((30, 1024), (1024, 96), epilogue=Epilogue((bias(96),))),
    "many_blocks": Case((900, 256), (256, 64), ranges=3),
    "right_is_runtime": Case((37, 50), (50, 70), weight=False),
    "few_rows_right_is_runtime": Case((5, 50), (50, 70), weight=False),
    "right_is_runtime_transposed": Case((37, 50), (70, 50), transpose_rhs=True, weight=False),
    "batched": Case((2, 3, 37, 50), (2, 3, 50, 70), weight=False, ranges=5),
    "batched_weight": Case((2, 3, 20, 50), (3, 50, 70), ranges=2),
    "batch_flattens": Case((2, 3, 20, 50), (50, 70), epilogue=Epilogue((bias(70, 4),))),
    "batch_broadcasts": Case((1, 3, 37, 50), (2, 1, 70, 50), transpose_rhs=True, weight=False, ranges=7),
    "batched_left_transposed": Case((3, 50, 37), (3, 50, 70), transpose_lhs=True, weight=False),
    "residual": Case((37, 50), (50, 70), epilogue=Epilogue((bias(70), Side("addf", (0, 1), (37, 70))), "relu")),
    "row_and_scalar_operands": Case(
        (37, 50), (50, 70), epilogue=Epilogue((Side("mulf", (0, 1), (37, 1)), Side("addf", (), ())), "silu")
    ),
    "position_operand": Case(
        (3, 11, 40), (40, 33), epilogue=Epilogue((bias(33, 3), Side("addf", (1, 2), (11, 33))), "hardswish")
    ),
    "two_results": Case((37, 50), (50, 70), epilogue=Epilogue((bias(70),), "relu", both=True)),
    "two_results_heavy": Case((37, 50), (50, 70), epilogue=Epilogue((bias(70),), "gelu", both=True)),
    **{
        f"dynamic_rows_{rows}": Case(
            (rows, 48), (48, 96), dynamic_rows=True,
            epilogue=Epilogue((bias(96), Side("addf", (0, 1), (rows, 96))), "relu"),
        )
        for rows in (1, 14, 29)
    },
    "dynamic_rows_runtime_right": Case((33, 48), (48, 96), dynamic_rows=True, weight=False),
    # On a CPU with AMX these run on tiles; elsewhere on vectors like every other bf16 product.
    "bf16_even_tiles": Case((64, 64), (64, 96), element="bf16", epilogue=Epilogue((bias(96),), "relu")),
    "bf16_uneven_tiles": Case(
        (75, 96), (96, 70), element="bf16", ranges=4,
        epilogue=Epilogue((bias(70), Side("addf", (0, 1), (75, 70)))),
    ),
    "bf16_batched_weight": Case((2, 3, 20, 64), (3, 64, 70), element="bf16", ranges=5),
    "bf16_linear_layout": Case((17, 64), (48, 64), transpose_rhs=True, element="bf16"),
    "bf16_odd_depth": Case((20, 33), (33, 70), element="bf16", ranges=2),
    "bf16_odd_depth_batched_weight": Case((2, 3, 9, 33), (3, 70, 33), transpose_rhs=True, element="bf16"),
    "bf16_odd_depth_left_transposed": Case((33, 20), (33, 70), transpose_lhs=True, element="bf16"),
    "bf16_left_transposed": Case((64, 20), (64, 70), transpose_lhs=True, element="bf16"),
    "bf16_odd_depth_runtime": Case((3, 40, 33), (3, 33, 70), weight=False, element="bf16"),
    "bf16_odd_depth_runtime_transposed": Case(
        (3, 40, 33), (3, 70, 33), transpose_rhs=True, weight=False, element="bf16",
    ),
    "bf16_few_rows_runtime": Case((3, 64), (64, 70), weight=False, element="bf16"),
    "bf16_runtime_edges": Case((2, 70, 50), (2, 50, 45), weight=False, element="bf16", ranges=3),
    "bf16_rows_evict_each_other": Case((30, 2048), (2048, 96), element="bf16"),
    "bf16_one_column": Case((9, 33), (33, 1), element="bf16"),
    "bf16_depth_of_one": Case((9, 1), (1, 40), element="bf16"),
    **{
        f"bf16_dynamic_rows_{rows}": Case((rows, 64), (64, 96), dynamic_rows=True, element="bf16", ranges=2)
        for rows in (1, 32, 65)
    },
    **{
        f"{element}_{name}": case
        for element in ("f16", "bf16", "f64")
        for name, case in {
            "weight": Case((37, 50), (50, 70), element=element, epilogue=Epilogue((bias(70),), "relu"), ranges=3),
            "runtime": Case((37, 50), (70, 50), transpose_rhs=True, weight=False, element=element),
            "one_row": Case((1, 50), (70, 50), transpose_rhs=True, element=element),
        }.items()
    },
}  # fmt: skip


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), at_levels(CASES))
def test_error_is_what_the_roundings_of_its_sums_allow(name: str, level: str) -> None:
    CASES[name].check(level)


@pytest.mark.parametrize(("name", "level"), on_tiles(CASES))
def test_error_on_tiles_is_what_the_roundings_of_its_sums_allow(name: str, level: str) -> None:
    CASES[name].check(level)


def test_no_rows_run_no_task() -> None:
    text = Case((1, 48), (48, 96), dynamic_rows=True).text()
    plan = plan_region(MatmulFamily(), text, "matmul", ["", "w"], LEVELS[0])
    assert not isinstance(plan, Refusal)
    arrays = [np.zeros((0, 48), np.float32), np.ones((48, 96), np.float32)]
    (out,) = run_plan(plan, arrays, [((0, 96), "f32")], LEVELS[0], [0, 0])
    assert out.size == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (Case((4, 8), (8, 8)).text().replace("f32", "i32"), "element type i32"),
        (
            "func.func @region(%a: tensor<4x?xf32>, %b: tensor<?x8xf32>) -> tensor<4x8xf32> {\n"
            '%0 = "lk.matmul"(%a, %b) {transpose_lhs = false, transpose_rhs = false, accumulate = f32} : '
            "(tensor<4x?xf32>, tensor<?x8xf32>) -> tensor<4x8xf32>\nreturn %0 : tensor<4x8xf32>\n}",
            "dynamic N or K",
        ),
    ],
    ids=["integers", "dynamic_depth"],
)
def test_refuses_with_a_reason(text: str, reason: str) -> None:
    refusal = plan_region(MatmulFamily(), text, "matmul", ["", ""], LEVELS[0])
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_text_of_a_small_kernel(golden: Callable[[str, str], None]) -> None:
    case = Case((2, 3), (3, 16), epilogue=Epilogue((bias(16),), "relu"))
    plan = plan_region(MatmulFamily(), case.text(), "matmul", ["", "w", "b"], "x86-64-v4")
    assert not isinstance(plan, Refusal)
    golden("matmul_2x3x16_bias_relu.mlir", plan.text)


@pytest.mark.parametrize("depth", [4608, 4609], ids=["whole_runs", "rest"])
@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("level", ENDS)
def test_error_of_long_sums_is_that_of_blocked_sums(level: str, rows: int, depth: int) -> None:
    """A single chain of 4608 positive terms ends about four times as far from float64."""
    case = Case((rows, depth), (depth, 64))
    generator = np.random.default_rng(0)
    lhs = generator.random((rows, depth), np.float32)
    rhs = generator.standard_normal((depth, 64), np.float32)
    plan = plan_region(MatmulFamily(), case.text(), "matmul", ["", "w"], level)
    assert not isinstance(plan, Refusal), plan.reason
    ours = run_plan(plan, [lhs, rhs], [(case.result, "f32")], level, [], 1)[0]
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    blocks = [lhs[:, k : k + 256] @ rhs[k : k + 256] for k in range(0, depth, 256)]
    blocked = np.zeros_like(ours)
    for block in blocks:
        blocked = blocked + block
    assert np.sqrt(np.mean((ours - exact) ** 2)) <= 2 * np.sqrt(np.mean((blocked - exact) ** 2))
