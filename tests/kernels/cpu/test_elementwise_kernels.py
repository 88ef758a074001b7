"""Elementwise kernels against numpy, bit for bit where each op rounds once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lowerkit.targets.cpu.elementwise.elementwise import ElementwiseFamily
from lowerkit.targets.plan import DeviceCode, Refusal
from tests.support.region_kernels import DTYPES, LEVELS, largest_error, plan_region, random, run_region, tensor

FAMILY = ElementwiseFamily()
Shape = Sequence[int | str]


def generic(operands: Sequence[tuple[Shape, str, str]], result: tuple[Shape, str], dims: str, body: str) -> str:
    """A region of one generic over ``dims`` such as ``i, j``; operands are (shape, element, map results)."""
    shape, element = result
    rank = len(dims.split(","))
    maps = [f"affine_map<({dims}) -> ({target})>" for _, _, target in operands]
    maps.append(f"affine_map<({dims}) -> ({dims})>")
    types = [tensor(size, kind) for size, kind, _ in operands]
    arguments = ", ".join(f"%a{index}: {type_}" for index, type_ in enumerate(types))
    block = ", ".join(f"%x{index}: {kind}" for index, (_, kind, _) in enumerate(operands))
    names = ", ".join(f"%a{index}" for index in range(len(types)))
    sizes = [f"%d{axis}" for axis, size in enumerate(shape) if size == "?"]
    head = [
        f"%c{axis} = arith.constant {axis} : index\n%d{axis} = tensor.dim %a0, %c{axis} : {types[0]}"
        for axis, size in enumerate(shape)
        if size == "?"
    ]
    return f"""func.func @region({arguments}) -> {tensor(shape, element)} {{
{chr(10).join(head)}
%e = tensor.empty({", ".join(sizes)}) : {tensor(shape, element)}
%r = linalg.generic {{indexing_maps = [{", ".join(maps)}], iterator_types = [{", ".join(['"parallel"'] * rank)}]}}
  ins({names} : {", ".join(types)}) outs(%e : {tensor(shape, element)}) {{
^bb0({block}, %o: {element}):
{body}
}} -> {tensor(shape, element)}
return %r : {tensor(shape, element)}
}}"""


def add(element: str) -> str:
    op = "addi" if element.startswith("i") else "addf"
    return f"%y = arith.{op} %x0, %x1 : {element}\nlinalg.yield %y : {element}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "bf16", "f16", "f64", "i8", "i64"])
@pytest.mark.parametrize("shape", [(), (1,), (63,), (2, 3, 37), (1, 64, 5, 5)])
def test_sum_of_equal_shapes(level: str, element: str, shape: tuple[int, ...]) -> None:
    dims = ", ".join(f"d{axis}" for axis in range(len(shape)))
    a, b = random(shape, element, 1), random(shape, element, 2)
    if not shape:
        text = generic([((), element, ""), ((), element, "")], ((), element), "", add(element)).replace(
            '["parallel"]', "[]"
        )
    else:
        text = generic([(shape, element, dims), (shape, element, dims)], (shape, element), dims, add(element))
    (result,) = run_region(FAMILY, text, [a, b], [shape], level)
    expected = (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype) if element in ("bf16", "f16") else a + b
    assert result.tobytes() == np.asarray(expected, a.dtype).tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ("k", (37,)),
        ("j", (5,)),
        ("i", (3,)),
        ("i, k", (3, 37)),
        ("0, j, 0", (1, 5, 1)),
        ("k, i", (37, 3)),
        ("k, j, i", (37, 5, 3)),
    ],
)
def test_broadcast_and_permuted_operand(level: str, target: str, shape: tuple[int, ...]) -> None:
    a, b = random((3, 5, 37), "f32", 1), random(shape, "f32", 2)
    text = generic([((3, 5, 37), "f32", "i, j, k"), (shape, "f32", target)], ((3, 5, 37), "f32"), "i, j, k", add("f32"))
    (result,) = run_region(FAMILY, text, [a, b], [a.shape], level)
    axes = [name.strip() for name in target.split(",")]
    kept = [axis for axis in axes if axis != "0"]
    squeezed = b.reshape([size for size, axis in zip(shape, axes, strict=True) if axis != "0"])
    ordered = squeezed.transpose(sorted(range(len(kept)), key=lambda at: kept[at]))
    for axis, name in enumerate("ijk"):
        if name not in kept:
            ordered = np.expand_dims(ordered, axis)
    assert (result == a + ordered).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "i8", "i1"])
@pytest.mark.parametrize("shape", [(16, 16), (64, 80), (37, 53), (5, 300), (130, 4)])
def test_square_tiles(level: str, element: str, shape: tuple[int, int]) -> None:
    a = random(shape, element)
    body = f"linalg.yield %x0 : {element}"
    text = generic([(shape, element, "j, i")], (shape[::-1], element), "i, j", body)
    (result,) = run_region(FAMILY, text, [a], [shape[::-1]], level)
    assert result.tobytes() == a.T.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [2, 3, 4, 8])
@pytest.mark.parametrize("element", ["f32", "bf16", "i8"])
def test_narrow_interleaving(level: str, channels: int, element: str) -> None:
    a = random((2, channels, 7, 9), element)
    shape = (2, 7, 9, channels)
    text = generic([(a.shape, element, "n, c, h, w")], (shape, element), "n, h, w, c", f"linalg.yield %x0 : {element}")
    (result,) = run_region(FAMILY, text, [a], [shape], level)
    assert result.tobytes() == a.transpose(0, 2, 3, 1).tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(7, 19), (64, 64), (33, 130), (1, 1)])
def test_dynamic_sizes_with_a_transposed_operand(level: str, shape: tuple[int, int]) -> None:
    a, b = random(shape, "f32", 1), random(shape[::-1], "f32", 2)
    body = "%s = arith.addf %x0, %x1 : f32\n%y = math.exp %s : f32\nlinalg.yield %y : f32"
    text = generic([(("?", "?"), "f32", "i, j"), (("?", "?"), "f32", "j, i")], (("?", "?"), "f32"), "i, j", body)
    (result,) = run_region(FAMILY, text, [a, b], [shape], level)
    expected = np.exp((a + b.T).astype(np.float64))
    assert (np.abs(result - expected) <= 1.1 * np.spacing(expected.astype(np.float32))).all()


@pytest.mark.parametrize("level", LEVELS)
def test_coordinates_in_the_body(level: str) -> None:
    body = """%i = linalg.index 0 : index
%j = linalg.index 1 : index
%keep = arith.cmpi sle, %j, %i : index
%low = arith.constant 0xFF800000 : f32
%y = arith.select %keep, %x0, %low : f32
linalg.yield %y : f32"""
    a = random((9, 45), "f32")
    (result,) = run_region(
        FAMILY, generic([((9, 45), "f32", "i, j")], ((9, 45), "f32"), "i, j", body), [a], [a.shape], level
    )
    assert (result == np.where(np.tril(np.ones((9, 45), bool)), a, -np.inf)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_comparison_writes_bytes_of_zero_and_one(level: str) -> None:
    a, b = random((70,), "f32", 1), random((70,), "f32", 2)
    a[3] = np.nan
    body = "%y = arith.cmpf olt, %x0, %x1 : f32\nlinalg.yield %y : i1"
    text = generic([((70,), "f32", "i"), ((70,), "f32", "i")], ((70,), "i1"), "i", body)
    (result,) = run_region(FAMILY, text, [a, b], [(70,)], level)
    assert (result.view(np.uint8) == (a < b).astype(np.uint8)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_narrow_floats_round_at_every_op(level: str, element: str) -> None:
    a, b = random((200,), element, 1), random((200,), element, 2)
    body = f"%m = arith.mulf %x0, %x1 : {element}\n%y = arith.addf %m, %x0 : {element}\nlinalg.yield %y : {element}"
    text = generic([((200,), element, "i"), ((200,), element, "i")], ((200,), element), "i", body)
    (result,) = run_region(FAMILY, text, [a, b], [(200,)], level)
    product = (a.astype(np.float32) * b.astype(np.float32)).astype(DTYPES[element])
    expected = (product.astype(np.float32) + a.astype(np.float32)).astype(DTYPES[element])
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_two_results(level: str) -> None:
    text = """func.func @region(%a: tensor<5x33xf32>) -> (tensor<5x33xf32>, tensor<5x33xi32>) {
  %e = tensor.empty() : tensor<5x33xf32>
  %f = tensor.empty() : tensor<5x33xi32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<5x33xf32>) outs(%e, %f : tensor<5x33xf32>, tensor<5x33xi32>) {
  ^bb0(%x: f32, %o: f32, %p: i32):
    %n = arith.negf %x : f32
    %i = arith.fptosi %x : f32 to i32
    linalg.yield %n, %i : f32, i32
  } -> (tensor<5x33xf32>, tensor<5x33xi32>)
  return %r#0, %r#1 : tensor<5x33xf32>, tensor<5x33xi32>
}"""
    a = random((5, 33), "f32", scale=50.0)
    negative, integer = run_region(FAMILY, text, [a], [a.shape, a.shape], level)
    assert (negative == -a).all()
    assert (integer == a.astype(np.int32)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_gelu_over_many_tasks(level: str) -> None:
    body = """%c = arith.constant 0.707106769 : f32
%h = arith.constant 0.5 : f32
%one = arith.constant 1.0 : f32
%m = arith.mulf %x0, %c : f32
%f = math.erf %m : f32
%p = arith.addf %f, %one : f32
%q = arith.mulf %p, %h : f32
%y = arith.mulf %q, %x0 : f32
linalg.yield %y : f32"""
    a = random((3, 20001), "f32", scale=3.0)
    text = generic([(a.shape, "f32", "i, j")], (a.shape, "f32"), "i, j", body)
    _, plan = plan_region(FAMILY, text)
    assert isinstance(plan, DeviceCode)
    assert plan.task_count > 8
    (result,) = run_region(FAMILY, text, [a], [a.shape], level)
    import torch

    exact = torch.nn.functional.gelu(torch.from_numpy(a).double()).numpy()
    eager = torch.nn.functional.gelu(torch.from_numpy(a)).numpy()
    assert largest_error(result, exact) <= 2 * largest_error(eager, exact)


def test_reductions_are_refused() -> None:
    text = """func.func @region(%a: tensor<4x8xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%a : tensor<4x8xf32>) outs(%b : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}"""
    _, answer = plan_region(FAMILY, text)
    assert isinstance(answer, Refusal)
    assert "not an elementwise generic" in answer.reason


def test_a_body_that_looks_up_elements_is_refused() -> None:
    text = """func.func @region(%a: tensor<8xf32>, %b: tensor<4xi64>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%b : tensor<4xi64>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: i64, %o: f32):
    %i = arith.index_cast %x : i64 to index
    %y = tensor.extract %a[%i] : tensor<8xf32>
    linalg.yield %y : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}"""
    _, answer = plan_region(FAMILY, text)
    assert isinstance(answer, Refusal)
    assert "tensor.extract" in answer.reason
