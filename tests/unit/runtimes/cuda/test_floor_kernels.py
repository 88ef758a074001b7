"""Whole kernels that LLVM compiled to PTX: the same results as numpy's, and no access beside their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES, anchored, tensor
from tests.support.suite.randomness import RANDOM
from tests.unit.runtimes.cuda.floor_kernels import FloorKernel, compile_region, run_kernel
from tests.unit.runtimes.cuda.ptx_programs import assemble

Array = np.ndarray[Any, Any]
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def region(text: str, kind: str) -> FloorKernel:
    kernel = compile_region(RegionView.from_text(text, kind))
    assemble(kernel.ptx)
    return kernel


def values(shape: Sequence[int], element: str) -> Array:
    return RANDOM.standard_normal(tuple(shape)).astype(DTYPES[element])


def run(kernel: FloorKernel, operands: Sequence[Array], shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Runs a kernel on a device that refuses to read what nothing has written."""
    results = [
        np.empty(tuple(shape), DTYPES[str(type_.element_type)])
        for shape, type_ in zip(shapes, kernel.view.results, strict=True)
    ]
    return run_kernel(kernel, operands, results, SimulatedGpu(refuse_unwritten=True))[0]


def softmax(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_softmax_of_any_number_of_rows(element: str, rows: int) -> None:
    kind = tensor(["?", 37], element)
    kernel = region(anchored("softmax", [kind], kind, "axis = 1 : i64, log = false"), "softmax")
    x = values((rows, 37), element)
    (found,) = run(kernel, [x], [x.shape])
    limit = TOLERANCE[element]
    np.testing.assert_allclose(found.astype(np.float64), softmax(x), rtol=limit, atol=limit)


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16"])
def test_matmul(element: str) -> None:
    types = [tensor([37, 19], element), tensor([19, 23], element)]
    attributes = f"accumulate = {'f64' if element == 'f64' else 'f32'}, transpose_lhs = false, transpose_rhs = false"
    kernel = region(anchored("matmul", types, tensor([37, 23], element), attributes), "matmul")
    a, b = values((37, 19), element), values((19, 23), element)
    (found,) = run(kernel, [a, b], [(37, 23)])
    limit = TOLERANCE[element]
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=limit, atol=4 * limit)


def test_sort_is_exact_and_stable() -> None:
    kind, indices = tensor([4, 24], "f32"), tensor([4, 24], "i64")
    kernel = region(
        f"func.func @region(%a: {kind}) -> ({kind}, {indices}) {{\n"
        '  %0, %1 = "lk.sort"(%a) {axis = 1 : i64, descending = false, stable = true} : '
        f"({kind}) -> ({kind}, {indices})\n"
        f"  return %0, %1 : {kind}, {indices}\n}}\n",
        "sort",
    )
    x = RANDOM.integers(-5, 6, (4, 24)).astype(np.float32)
    x[0, 7] = np.inf
    ordered, places = run(kernel, [x], [x.shape, x.shape])
    assert (ordered == np.sort(x, 1)).all()
    assert (places == np.argsort(x, 1, kind="stable")).all()


ELEMENTWISE = """
#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @region(%a: tensor<?x29x{t}>, %b: tensor<29x{t}>) -> (tensor<?x29x{t}>, tensor<?x29xi1>) {{
  %c0 = arith.constant 0 : index
  %d = tensor.dim %a, %c0 : tensor<?x29x{t}>
  %e = tensor.empty(%d) : tensor<?x29x{t}>
  %p = tensor.empty(%d) : tensor<?x29xi1>
  %r:2 = linalg.generic {{indexing_maps = [#map, #row, #map, #map], iterator_types = ["parallel", "parallel"]}}
    ins(%a, %b : tensor<?x29x{t}>, tensor<29x{t}>) outs(%e, %p : tensor<?x29x{t}>, tensor<?x29xi1>) {{
  ^bb0(%x: {t}, %y: {t}, %o: {t}, %q: i1):
{body}
    linalg.yield %u, %g : {t}, i1
  }} -> (tensor<?x29x{t}>, tensor<?x29xi1>)
  return %r#0, %r#1 : tensor<?x29x{t}>, tensor<?x29xi1>
}}"""
FLOAT_BODY = """
    %s = arith.addf %x, %y : {t}
    %h = math.tanh %s : {t}
    %g = arith.cmpf ogt, %h, %x : {t}
    %u = math.exp %h : {t}"""
INTEGER_BODY = """
    %s = arith.muli %x, %y : {t}
    %h = arith.shrsi %s, %y : {t}
    %m = arith.maxsi %h, %x : {t}
    %g = arith.cmpi ult, %m, %s : {t}
    %u = arith.xori %m, %s : {t}"""


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 67])
def test_elementwise_floats(element: str, rows: int) -> None:
    kernel = region(ELEMENTWISE.format(t=element, body=FLOAT_BODY.format(t=element)), "elementwise")
    x, y = values((rows, 29), element), values((29,), element)
    found, larger = run(kernel, [x, y], [x.shape, x.shape])
    tanh = np.tanh((x + y).astype(np.float64))
    limit = TOLERANCE[element]
    np.testing.assert_allclose(found.astype(np.float64), np.exp(tanh), rtol=2 * limit)
    decided = np.abs(tanh - x.astype(np.float64)) > limit
    assert (larger == (tanh > x))[decided].all()


@pytest.mark.parametrize("element", ["i64", "i32", "i16", "i8"])
def test_elementwise_integers_are_exact(element: str) -> None:
    kernel = region(ELEMENTWISE.format(t=element, body=INTEGER_BODY.format(t=element)), "elementwise")
    dtype = DTYPES[element]
    bits = np.iinfo(dtype).bits
    x = RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (67, 29), dtype, endpoint=True)
    y = RANDOM.integers(0, bits, (29,)).astype(dtype)
    found, less = run(kernel, [x, y], [x.shape, x.shape])
    product = x * y
    largest = np.maximum(product >> y, x)
    unsigned = np.dtype(f"u{bits // 8}")
    assert (found == (largest ^ product)).all()
    assert (less == (largest.view(unsigned) < product.view(unsigned))).all()


def test_special_values_go_through() -> None:
    """NaN, infinities and zeros of both signs, through a kernel of sums, products and comparisons."""
    kernel = region(ELEMENTWISE.format(t="f32", body=FLOAT_BODY.format(t="f32")), "elementwise")
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38], np.float32)
    x, y = np.resize(special, (9, 29)).astype(np.float32), np.resize(special, 29).astype(np.float32)
    found, larger = run(kernel, [x, y], [x.shape, x.shape])
    with np.errstate(all="ignore"):
        tanh = np.tanh((x + y).astype(np.float64))
    np.testing.assert_allclose(found, np.exp(tanh), rtol=2e-5)
    assert (larger == (tanh > x))[np.abs(tanh - x) > 1e-5].all()


def test_a_buffer_that_is_too_short_is_found() -> None:
    kind = tensor([9, 37], "f32")
    kernel = region(anchored("softmax", [kind], kind, "axis = 1 : i64, log = false"), "softmax")
    x = values((9, 37), "f32")
    with pytest.raises(KernelFault, match=r"reads \d+ bytes at 0x\w+: .* behind the end of buffer 0 \(1184 bytes"):
        run_kernel(kernel, [x[:8]], [x], SimulatedGpu())
    with pytest.raises(KernelFault, match=r"writes \d+ bytes at 0x\w+: .* behind the end of buffer 1 \(1184 bytes"):
        run_kernel(kernel, [x], [x[:8]], SimulatedGpu())
