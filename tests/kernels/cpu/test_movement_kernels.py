"""Gather, rope, transposes and copies: kernels that move elements, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.targets.cpu.elementwise.transpose import TransposeFamily
from lowerkit.targets.cpu.movement.copy import CopyFamily
from lowerkit.targets.cpu.movement.gather import GatherFamily
from lowerkit.targets.cpu.movement.rope import RopeFamily
from lowerkit.targets.cpu.movement.scatter import ScatterFamily
from lowerkit.targets.plan import Refusal
from tests.support.region_kernels import DTYPES, LEVELS, anchored, plan_region, random, run_region, tensor

ELEMENTS = ["f32", "bf16", "i8", "i1", "i64"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("positions", ["i64", "i32"])
@pytest.mark.parametrize(
    ("table", "indices", "axis"),
    [
        ((50, 37), (3, 4), 0),
        ((5, 7), (6,), 1),
        ((4, 6, 9), (2, 2), 1),
        ((9,), (4,), 0),
        ((9, 4), (), 0),
        ((30, 768), (1, 40), 0),
    ],
)
def test_gather(
    level: str, element: str, positions: str, table: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    data = random(table, element)
    generator = np.random.default_rng(5)
    at = np.asarray(generator.integers(-table[axis], table[axis], indices), DTYPES[positions])
    expected = np.take(data, at, axis=axis)
    types = [tensor(table, element), tensor(indices, positions)]
    text = anchored("gather", types, tensor(expected.shape, element), f"axis = {axis} : i64")
    (result,) = run_region(GatherFamily(), text, [data, at], [expected.shape], level)
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_gather_clamps_what_lies_outside(level: str) -> None:
    data = random((5, 20), "f32")
    at = np.array([5, 2**62, -6, -(2**62)], np.int64)
    text = anchored("gather", [tensor((5, 20), "f32"), tensor((4,), "i64")], tensor((4, 20), "f32"), "axis = 0 : i64")
    (result,) = run_region(GatherFamily(), text, [data, at], [(4, 20)], level)
    assert (result == data[[4, 4, 0, 0]]).all()


def scatter(table: Any, indices: Any, updates: Any, axis: int) -> Any:
    """What lk.scatter says, slice by slice; an index outside of the table leaves its update out."""
    result = np.moveaxis(table.copy(), axis, 0)
    count = indices.ndim
    slices = np.moveaxis(updates, range(axis, axis + count), range(count)).reshape((-1, *result.shape[1:]))
    for row, values in zip(indices.reshape(-1), slices, strict=True):
        if -len(result) <= row < len(result):
            result[row] = values
    return np.ascontiguousarray(np.moveaxis(result, 0, axis))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("positions", ["i64", "i32"])
@pytest.mark.parametrize(
    ("table", "indices", "axis"),
    [((50, 37), (3, 4), 0), ((5, 7), (6,), 1), ((4, 6, 9), (2, 2), 1), ((9,), (4,), 0), ((9, 4), (), 0),
     ((2, 12, 65, 64), (3,), 2), ((40, 3, 700), (2,), 1)],
)  # fmt: skip
def test_scatter(
    level: str, element: str, positions: str, table: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    data = random(table, element)
    updates = random((*table[:axis], *indices, *table[axis + 1 :]), element, seed=1)
    at = np.random.default_rng(5).integers(-table[axis] - 1, table[axis] + 1, indices).astype(DTYPES[positions])
    types = [tensor(table, element), tensor(indices, positions), tensor(updates.shape, element)]
    text = anchored("scatter", types, tensor(table, element), f'axis = {axis} : i64, kind = "set"')
    (result,) = run_region(ScatterFamily(), text, [data, np.asarray(at), updates], [table], level)
    assert result.tobytes() == scatter(data, np.asarray(at), updates, axis).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_scatter_far_outside(level: str) -> None:
    data, updates = random((5, 20), "f32"), random((6, 20), "f32", seed=1)
    at = np.array([5, 2**62, -6, -(2**62), 4, -5], np.int64)
    types = [tensor((5, 20), "f32"), tensor((6,), "i64"), tensor((6, 20), "f32")]
    text = anchored("scatter", types, tensor((5, 20), "f32"), 'axis = 0 : i64, kind = "set"')
    (result,) = run_region(ScatterFamily(), text, [data, at, updates], [(5, 20)], level)
    assert result.tobytes() == scatter(data, at, updates, 0).tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("heads", "length", "count"), [(1, 9, 1), (13, 300, 300), (3, 5, 0), (200, 7, 3)])
def test_scatter_of_dynamic_sizes(level: str, heads: int, length: int, count: int) -> None:
    data, updates = random((heads, length, 64), "f32"), random((heads, count, 64), "f32", seed=1)
    at = np.random.default_rng(7).integers(-length, length, count)
    types = [tensor(("?", "?", 64), "f32"), tensor(("?",), "i64"), tensor(("?", "?", 64), "f32")]
    text = anchored("scatter", types, tensor(("?", "?", 64), "f32"), 'axis = 1 : i64, kind = "set"')
    (result,) = run_region(ScatterFamily(), text, [data, at, updates], [data.shape], level)
    assert result.tobytes() == scatter(data, at, updates, 1).tobytes()


def test_scatters_that_the_family_leaves_alone() -> None:
    types = [tensor((5, 20), "f32"), tensor((6,), "i64"), tensor((6, 20), "f32")]
    text = anchored("scatter", types, tensor((5, 20), "f32"), 'axis = 0 : i64, kind = "add"')
    _, answer = plan_region(ScatterFamily(), text)
    assert isinstance(answer, Refusal)
    assert "combines by add" in answer.reason
    own = """func.func @region(%a: tensor<5x20xf32>, %i: tensor<5xi64>) -> tensor<5x20xf32> {
  %r = "lk.scatter"(%a, %i, %a) {axis = 0 : i64, kind = "set"}
    : (tensor<5x20xf32>, tensor<5xi64>, tensor<5x20xf32>) -> tensor<5x20xf32>
  return %r : tensor<5x20xf32>
}"""
    _, answer = plan_region(ScatterFamily(), own)
    assert isinstance(answer, Refusal)
    assert "the table itself" in answer.reason


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 33])
def test_gather_of_dynamic_sizes_with_an_epilogue(level: str, count: int) -> None:
    text = """func.func @region(%a: tensor<?x40xf32>, %i: tensor<?xi64>, %p: tensor<?x40xf32>) -> tensor<?x40xf32> {
  %r = "lk.gather"(%a, %i) {axis = 0 : i64} : (tensor<?x40xf32>, tensor<?xi64>) -> tensor<?x40xf32>
  %c0 = arith.constant 0 : index
  %n = tensor.dim %i, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?x40xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
    affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%r, %p : tensor<?x40xf32>, tensor<?x40xf32>) outs(%e : tensor<?x40xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<?x40xf32>
  return %o : tensor<?x40xf32>
}"""
    data, add = random((7, 40), "f32", 1), random((count, 40), "f32", 2)
    at = np.random.default_rng(5).integers(0, 7, count)
    (result,) = run_region(GatherFamily(), text, [data, at, add], [(count, 40)], level)
    assert (result == data[at] + add).all()


@pytest.mark.parametrize("level", LEVELS)
def test_gather_whose_epilogue_broadcasts_over_the_batch(level: str) -> None:
    text = """func.func @region(%a: tensor<30x40xf32>, %i: tensor<2x5xi64>, %p: tensor<1x5x40xf32>)
    -> tensor<2x5x40xf32> {
  %r = "lk.gather"(%a, %i) {axis = 0 : i64} : (tensor<30x40xf32>, tensor<2x5xi64>) -> tensor<2x5x40xf32>
  %e = tensor.empty() : tensor<2x5x40xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(b, i, j) -> (b, i, j)>, affine_map<(b, i, j) -> (0, i, j)>,
    affine_map<(b, i, j) -> (b, i, j)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%r, %p : tensor<2x5x40xf32>, tensor<1x5x40xf32>) outs(%e : tensor<2x5x40xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %k = linalg.index 1 : index
    %n = arith.index_cast %k : index to i32
    %f = arith.sitofp %n : i32 to f32
    %s = arith.addf %x, %y : f32
    %t = arith.addf %s, %f : f32
    linalg.yield %t : f32
  } -> tensor<2x5x40xf32>
  return %o : tensor<2x5x40xf32>
}"""
    data, add = random((30, 40), "f32", 1), random((1, 5, 40), "f32", 2)
    at = np.random.default_rng(5).integers(0, 30, (2, 5))
    (result,) = run_region(GatherFamily(), text, [data, at, add], [(2, 5, 40)], level)
    assert (result == data[at] + add + np.arange(5, dtype=np.float32)[:, None]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(1, 3, 5, 64), (2, 2, 7, 20), (1, 1, 3, 2)])
def test_rope(level: str, interleaved: bool, full: bool, element: str, shape: tuple[int, ...]) -> None:
    batch, heads, steps, features = shape
    width = features if full else features // 2
    x = random(shape, element)
    wide = x.astype(np.float32)
    first = np.arange(0, features, 2) if interleaved else np.arange(features // 2)
    second = first + 1 if interleaved else first + features // 2
    for table in ((steps,), (1, 1, steps), (batch, 1, steps), (batch, heads, steps)):
        cos, sin = random((*table, width), "f32", 1), random((*table, width), "f32", 2)
        c, s = (np.broadcast_to(array, (*shape[:3], width)) for array in (cos, sin))
        ca, cb, sa, sb = (c[..., first], c[..., second], s[..., first], s[..., second]) if full else (c, c, s, s)
        expected = np.empty_like(wide)
        expected[..., first] = wide[..., first] * ca - wide[..., second] * sa
        expected[..., second] = wide[..., second] * cb + wide[..., first] * sb
        types = [tensor(shape, element), *[tensor(cos.shape, "f32")] * 2]
        text = anchored("rope", types, types[0], f"interleaved = {str(interleaved).lower()}")
        (result,) = run_region(RopeFamily(), text, [x, cos, sin], [shape], level)
        assert result.tobytes() == expected.astype(DTYPES[element]).tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("permutation", [(0, 2, 1, 3), (3, 0, 1, 2), (0, 2, 3, 1), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_transpose(level: str, element: str, permutation: tuple[int, ...]) -> None:
    x = random((2, 5, 3, 33), element)
    expected = x.transpose(permutation)
    source, target = tensor(x.shape, element), tensor(expected.shape, element)
    text = f"""func.func @region(%a: {source}) -> {target} {{
  %e = tensor.empty() : {target}
  %r = linalg.transpose ins(%a : {source}) outs(%e : {target}) permutation = {list(permutation)}
  return %r : {target}
}}"""
    (result,) = run_region(TransposeFamily(), text, [x], [expected.shape], level)
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_broadcast(level: str) -> None:
    x = random((5, 33), "f32")
    text = """func.func @region(%a: tensor<5x33xf32>) -> tensor<5x4x33xf32> {
  %e = tensor.empty() : tensor<5x4x33xf32>
  %r = linalg.broadcast ins(%a : tensor<5x33xf32>) outs(%e : tensor<5x4x33xf32>) dimensions = [1]
  return %r : tensor<5x4x33xf32>
}"""
    (result,) = run_region(TransposeFamily(), text, [x], [(5, 4, 33)], level)
    assert (result == x[:, None]).all()


def copy_text(arguments: list[str], result: str, body: str) -> str:
    head = ", ".join(f"%{'abc'[index]}: {type_}" for index, type_ in enumerate(arguments))
    return f"func.func @region({head}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat(level: str, element: str, axis: int) -> None:
    shapes = [[3, 40, 7], [3, 40, 7]]
    shapes[1][axis] = 11
    a, b = random(shapes[0], element, 1), random(shapes[1], element, 2)
    expected = np.concatenate([a, b, a], axis)
    types = [tensor(shape, element) for shape in shapes]
    target = tensor(expected.shape, element)
    body = f"%r = tensor.concat dim({axis}) %a, %b, %a : ({types[0]}, {types[1]}, {types[0]}) -> {target}"
    (result,) = run_region(CopyFamily(), copy_text(types, target, body), [a, b], [expected.shape], level)
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_slices(level: str, element: str) -> None:
    a = random((3, 40, 7), element)
    source = tensor(a.shape, element)
    for place, expected in (
        ("[0, 4, 0] [3, 9, 7] [1, 3, 1]", a[:, 4:31:3]),
        ("[0, 0, 1] [3, 40, 3] [1, 1, 2]", a[:, :, 1:7:2]),
        ("[1, 0, 0] [2, 40, 7] [1, 1, 1]", a[1:]),
    ):
        target = tensor(expected.shape, element)
        body = f"%r = tensor.extract_slice %a{place} : {source} to {target}"
        (result,) = run_region(CopyFamily(), copy_text([source], target, body), [a], [expected.shape], level)
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("place", "target", "expected"),
    [
        ("[0, 4, 0] [3, 1, 7] [1, 1, 1]", (3, 7), (slice(None), 4)),
        ("[2, 4, 0] [1, 1, 7] [1, 1, 1]", (7,), (2, 4)),
        ("[2, 0, 3] [1, 40, 1] [1, 1, 1]", (40,), (2, slice(None), 3)),
        ("[0, 4, 3] [3, 1, 1] [1, 1, 1]", (3, 1), (slice(None), slice(4, 5), 3)),
    ],
)
def test_slices_that_drop_dimensions(
    level: str, place: str, target: tuple[int, ...], expected: tuple[Any, ...]
) -> None:
    a = random((3, 40, 7), "f32")
    types = tensor(a.shape, "f32"), tensor(target, "f32")
    body = f"%r = tensor.extract_slice %a{place} : {types[0]} to {types[1]}"
    (result,) = run_region(CopyFamily(), copy_text([types[0]], types[1], body), [a], [target], level)
    assert (result == a[expected].reshape(target)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_padding(level: str, element: str) -> None:
    a = random((3, 40, 7), element)
    number, literal = {"f32": (2.5, "2.5 : f32"), "bf16": (2.5, "2.5 : bf16"), "i1": (True, "true")}.get(
        element, (5, f"5 : {element}")
    )
    source, target = tensor(a.shape, element), tensor((4, 43, 12), element)
    body = f"""%k = arith.constant {literal}
%r = tensor.pad %a low[1, 0, 2] high[0, 3, 3] {{
^bb0(%i: index, %j: index, %l: index):
  tensor.yield %k : {element}
}} : {source} to {target}"""
    (result,) = run_region(CopyFamily(), copy_text([source], target, body), [a], [(4, 43, 12)], level)
    expected = np.pad(a, ((1, 0), (0, 3), (2, 3)), constant_values=np.array(number).astype(a.dtype))
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("batch", "position"), [(1, 0), (3, 5), (2, 38)])
def test_insertion_at_a_position_known_at_run_time(level: str, batch: int, position: int) -> None:
    cache, new = random((batch, 40, 7), "f32", 1), random((batch, 2, 7), "f32", 2)
    arguments = ["tensor<?x40x7xf32>", "tensor<?x2x7xf32>", "tensor<1xi64>"]
    body = """%c0 = arith.constant 0 : index
%p = tensor.extract %c[%c0] : tensor<1xi64>
%i = arith.index_cast %p : i64 to index
%n = tensor.dim %b, %c0 : tensor<?x2x7xf32>
%r = tensor.insert_slice %b into %a[0, %i, 0] [%n, 2, 7] [1, 1, 1] : tensor<?x2x7xf32> into tensor<?x40x7xf32>"""
    operands = [cache, new, np.array([position], np.int64)]
    (result,) = run_region(CopyFamily(), copy_text(arguments, arguments[0], body), operands, [cache.shape], level)
    expected = cache.copy()
    expected[:, position : position + 2] = new
    assert (result == expected).all()


def test_a_region_that_computes_is_refused() -> None:
    text = anchored("softmax", [tensor((4,), "f32")], tensor((4,), "f32"), "axis = 0 : i64, log = false")
    _, answer = plan_region(CopyFamily(), text)
    assert isinstance(answer, Refusal)
    assert "computes" in answer.reason
