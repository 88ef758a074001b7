"""Rotary embedding on the simulated card against the reference of the op: both orders, tables of all shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.reference.rows import rope as reference
from lowerkit.targets.cuda.families.rope import RopeFamily
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, random, tensor
from tests.support.targets.cuda_kernels import compile_with, run_cuda

FAMILY = RopeFamily()
TOLERANCE = {"f64": 1e-15, "f32": 5e-7, "f16": 1e-3, "bf16": 8e-3}


def planned(data: Any, table: Any, elements: tuple[str, str], interleaved: bool) -> tuple[RegionView, PlannedRegion]:
    types = [tensor(data, elements[0]), *[tensor(table, elements[1])] * 2]
    text = anchored("rope", types, types[0], f"interleaved = {str(interleaved).lower()}")
    view = RegionView.from_text(text, "rope")
    answer = FAMILY.plan(view, "sm_90")
    assert isinstance(answer, PlannedRegion), answer
    return view, answer


def check(
    data: tuple[int, ...],
    table: tuple[int, ...],
    elements: tuple[str, str],
    interleaved: bool,
    types: tuple[Any, Any] | None = None,
) -> None:
    view, plan = planned(*(types or (data, table)), elements, interleaved)
    operands = [random(data, elements[0], 1), random(table, elements[1], 2), random(table, elements[1], 3)]
    (found,) = run_cuda(compile_with(plan, view, "sm_90"), operands)
    exact = reference(operands[0], operands[1], operands[2], interleaved)
    limit = TOLERANCE[elements[0]]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=limit, atol=limit)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("data", "table", "elements"),
    [
        ((2, 4, 12, 64), (1, 1, 12, 64), ("bf16", "bf16")),
        ((2, 3, 5, 20), (2, 1, 5, 10), ("f32", "f32")),
        ((1, 2, 7, 12), (12,), ("f16", "f32")),
        ((2, 2, 3, 2), (3, 1), ("f64", "f64")),
        ((1, 1, 1, 256), (1, 256), ("bf16", "f32")),
    ],
)
def test_pairs(data: tuple[int, ...], table: tuple[int, ...], elements: tuple[str, str], interleaved: bool) -> None:
    check(data, table, elements, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 70, 70), (2, 70, 1), (1, 0, 0)], ids=str)
def test_open_extents(sizes: tuple[int, int, int], interleaved: bool) -> None:
    """An open extent of a table may turn out to be 1: the entry is that of all positions."""
    batch, length, entries = sizes
    types: tuple[Any, Any] = (("?", 2, "?", 16), (1, "?", 16))
    check((batch, 2, length, 16), (1, entries, 16), ("bf16", "bf16"), interleaved, types)


def test_epilogue() -> None:
    text = """func.func @region(%x: tensor<2x3x5x8xf32>, %c: tensor<5x8xf32>, %s: tensor<5x8xf32>,
    %b: tensor<2x5x3x8xf32>) -> tensor<2x5x3x8xf32> {
  %r = "lk.rope"(%x, %c, %s) {interleaved = false} : (tensor<2x3x5x8xf32>, tensor<5x8xf32>, tensor<5x8xf32>)
    -> tensor<2x3x5x8xf32>
  %e = tensor.empty() : tensor<2x5x3x8xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(b, s, h, d) -> (b, h, s, d)>,
    affine_map<(b, s, h, d) -> (b, s, h, d)>, affine_map<(b, s, h, d) -> (b, s, h, d)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%r, %b : tensor<2x3x5x8xf32>, tensor<2x5x3x8xf32>) outs(%e : tensor<2x5x3x8xf32>) {
  ^bb0(%x0: f32, %y: f32, %z: f32):
    %m = arith.mulf %x0, %y : f32
    linalg.yield %m : f32
  } -> tensor<2x5x3x8xf32>
  return %o : tensor<2x5x3x8xf32>
}"""
    view = RegionView.from_text(text, "rope")
    plan = FAMILY.plan(view, "sm_80")
    assert isinstance(plan, PlannedRegion)
    shapes = [(2, 3, 5, 8), (5, 8), (5, 8), (2, 5, 3, 8)]
    x, c, s, b = (random(shape, "f32", seed) for seed, shape in enumerate(shapes))
    (found,) = run_cuda(compile_with(plan, view, "sm_80"), [x, c, s, b])
    exact = reference(x, c, s, False).transpose(0, 2, 1, 3) * b
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "elements", "reason"),
    [((1, 1, 4, 8), ("f32", "f64"), "tables of f64"), ((1, 0, 4, 8), ("f32", "f32"), "nothing to compute")],
)
def test_refusals(data: tuple[int, ...], elements: tuple[str, str], reason: str) -> None:
    types = [tensor(data, elements[0]), *[tensor((4, 8), elements[1])] * 2]
    text = anchored("rope", types, types[0], "interleaved = false")
    answer = FAMILY.plan(RegionView.from_text(text, "rope"), "sm_80")
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_full_model_moves_vectors_of_16_bytes_without_overflowing_registers(interleaved: bool, level: str) -> None:
    _, plan = planned((1, 32, 2048, 128), (1, 1, 2048, 128), ("bf16", "bf16"), interleaved)
    (kernel,) = plan.kernels.values()
    assert isinstance(kernel, FastKernel)
    assembler = ptxas.find_ptxas() or toolchain.bundled_ptxas()
    assert assembler is not None
    ptx = toolchain.compile_to_ptx(kernel.kernel, "kernel", level).ptx
    assert ptxas.assemble(assembler, ptx, level).spills == 0
    for line in ptx.splitlines():
        if "ld.global" in line or "st.global" in line:
            assert ".v4.b32" in line, line
