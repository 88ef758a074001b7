"""Invariant kernels: an element has the same bits whatever columns, rows, batches and heads are computed beside it.

Each case computes a whole and parts of it, by kernels of their own shapes, and compares bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import UnsupportedError
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.gemm.matmul import MatmulFamily
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView
from tests.support.kernels import ENDS, FLOAT_LEVELS, random_array, run_plan, tensor

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
ATTENTION = 'scale = 0.25 : f64, causal = {}, masking = "add", fill = 0.0 : f64, empty_rows = "zero"'


def kernel(text: str, weights: Sequence[str], level: str, invariant: bool = True) -> DeviceCode:
    view = RegionView.from_text(text, "test", weights)
    return select_kernel(view.as_invariant() if invariant else view, cpu_features(level))


def run(
    op: str,
    attributes: str,
    arrays: Sequence[Array],
    result: Shape,
    element: str,
    level: str,
    weights: Sequence[str] = (),
    made: str = "",
) -> Array:
    """One op alone in its region, in three ranges of tasks; its result has elements of ``made``, or ``element``."""
    types = [tensor(array.shape, element) for array in arrays]
    arguments = ", ".join(f"%a{number}: {each}" for number, each in enumerate(types))
    names = ", ".join(f"%a{number}" for number in range(len(types)))
    out = tensor(result, made or element)
    text = (
        f"func.func @region({arguments}) -> {out} {{\n"
        f'%0 = "lk.{op}"({names}) {{{attributes}}} : ({", ".join(types)}) -> {out}\nreturn %0 : {out}\n}}'
    )
    plan = kernel(text, weights or [""] * len(arrays), level)
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    return run_plan(plan, contiguous, [(result, made or element)], level, ranges=3)[0]


def product(a: Array, b: Array, element: str, level: str, weight: bool, flip: bool) -> Array:
    attributes = f"transpose_lhs = false, transpose_rhs = {str(flip).lower()}, accumulate = f32"
    shape = (*a.shape[:-1], b.shape[-2 if flip else -1])
    return run("matmul", attributes, [a, b], shape, element, level, ["", "w" if weight else ""])


def assert_same(part: Array, whole: Array, what: object) -> None:
    assert part.tobytes() == np.ascontiguousarray(whole).tobytes(), f"{what}: other bits than in the whole"


def levels(element: str) -> Sequence[str]:
    return FLOAT_LEVELS if element == "bf16" else ENDS


@pytest.mark.parametrize(("depth", "weight", "flip"), [(96, True, True), (700, True, False), (96, False, False)])
@pytest.mark.parametrize(
    ("element", "level"), [(element, level) for element in ("f32", "bf16") for level in levels(element)]
)
def test_products(element: str, level: str, depth: int, weight: bool, flip: bool) -> None:
    generator = np.random.default_rng(0)
    a = random_array(generator, (17, depth), element)
    b = random_array(generator, (80, depth) if flip else (depth, 80), element)
    whole = product(a, b, element, level, weight, flip)
    for rows, columns in ((1, 80), (1, 10), (5, 40)):
        part = b[:columns] if flip else b[:, :columns]
        found = product(a[:rows], part, element, level, weight, flip)
        assert_same(found, whole[:rows, :columns], (rows, columns))


@pytest.mark.parametrize(("element", "level"), [("f32", ENDS[-1]), *(("bf16", level) for level in levels("bf16"))])
def test_batches_of_products(element: str, level: str) -> None:
    """As a tree over K has them: a part of the weight for each batch, and batches beside the rows that share it."""
    generator = np.random.default_rng(1)
    a = random_array(generator, (2, 2, 3, 2, 96), element)
    b = random_array(generator, (2, 2, 1, 24, 96), element)
    whole = product(a, b, element, level, weight=True, flip=True)
    for batch in ((slice(0, 1), slice(0, 2)), (slice(1, 2), slice(1, 2))):
        assert_same(product(a[batch], b[batch], element, level, weight=True, flip=True), whole[batch], batch)
    assert_same(product(a[:, :, 1:2], b, element, level, weight=True, flip=True), whole[:, :, 1:2], "one batch of rows")


def test_products_that_are_not_invariant_hang_on_their_columns() -> None:
    """What the other tests would miss if they compared kernels of one order: here are two."""
    generator = np.random.default_rng(0)
    a, b = random_array(generator, (1, 700), "f32"), random_array(generator, (700, 80), "f32")
    found: list[Array] = []
    for columns in (80, 10):
        types = [tensor((1, 700), "f32"), tensor((700, columns), "f32"), tensor((1, columns), "f32")]
        text = (
            f"func.func @region(%a: {types[0]}, %b: {types[1]}) -> {types[2]} {{\n"
            '%0 = "lk.matmul"(%a, %b) {transpose_lhs = false, transpose_rhs = false, accumulate = f32} '
            f": ({types[0]}, {types[1]}) -> {types[2]}\nreturn %0 : {types[2]}\n}}"
        )
        plan = kernel(text, ["", "w"], ENDS[-1], invariant=False)
        part = np.ascontiguousarray(b[:, :columns])
        found += run_plan(plan, [a, part], [((1, columns), "f32")], ENDS[-1])
    assert found[0][:, :10].tobytes() != found[1].tobytes()


def test_rows_of_unknown_number_with_batches() -> None:
    """A product of batches, each with its weight, whose rows are unknown until run time."""
    text = (
        "func.func @region(%a: tensor<2x4x?x3x24xf32>, %b: tensor<2x4x1x24x96xf32>) -> tensor<2x4x?x3x96xf32> {\n"
        '%0 = "lk.matmul"(%a, %b) {transpose_lhs = false, transpose_rhs = false, accumulate = f32} '
        ": (tensor<2x4x?x3x24xf32>, tensor<2x4x1x24x96xf32>) -> tensor<2x4x?x3x96xf32>\n"
        "return %0 : tensor<2x4x?x3x96xf32>\n}"
    )
    view = RegionView.from_text(text, "matmul", ["", "w"]).as_invariant()
    plan = MatmulFamily().plan(view, cpu_features(ENDS[0]))
    assert isinstance(plan, DeviceCode), plan
    generator = np.random.default_rng(2)
    b = random_array(generator, (2, 4, 1, 24, 96), "f32")
    for rows in (1, 5, 40):
        a = random_array(generator, (2, 4, rows, 3, 24), "f32")
        (found,) = run_plan(plan, [a, b], [((2, 4, rows, 3, 96), "f32")], ENDS[0], [rows, rows], ranges=3)
        assert_same(found, product(a, b, "f32", ENDS[0], weight=True, flip=False), rows)


@pytest.mark.parametrize(
    ("key_heads", "length", "element", "causal"),
    [
        (4, 20, "f32", False),
        (2, 20, "bf16", True),
        pytest.param(2, 20, "bf16", False, marks=pytest.mark.exhaustive),
        (2, 530, "f32", True),
    ],
)
def test_attention_over_heads_and_batches(key_heads: int, length: int, element: str, causal: bool) -> None:
    level, generator = levels(element)[-1], np.random.default_rng(3)
    query = random_array(generator, (2, 4, length, 16), element)
    key, value = (random_array(generator, (2, key_heads, length, 16), element) for _ in range(2))

    def attend(heads: slice, own: slice, batch: slice = slice(None)) -> Array:
        arrays = [query[batch, heads], key[batch, own], value[batch, own]]
        return run("attention", ATTENTION.format(str(causal).lower()), arrays, arrays[0].shape, element, level)

    whole = attend(slice(0, 4), slice(0, key_heads))
    group = 4 // key_heads
    for heads in (slice(2, 4), slice(3, 4)):
        own = slice(heads.start // group, (heads.stop - 1) // group + 1)
        assert_same(attend(heads, own), whole[:, heads], heads)
    assert_same(attend(slice(0, 4), slice(0, key_heads), slice(1, 2)), whole[1:], "batch")


def test_a_kernel_of_another_kind_for_other_extents_is_refused() -> None:
    """A norm of rows with an operand that changes order among the rows is taken where one of these has extent one."""

    def planned(rows: int, invariant: bool) -> DeviceCode:
        text = f"""func.func @region(%a: tensor<5x{rows}x40xf32>, %b: tensor<{rows}x5xf32>) -> tensor<5x{rows}xf32> {{
          %e = tensor.empty() : tensor<5x{rows}xf32>
          %r = "lk.reduce"(%a) {{axes = array<i64: 2>, keep_dims = false, kind = "sum"}}
              : (tensor<5x{rows}x40xf32>) -> tensor<5x{rows}xf32>
          %y = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1, d0)>,
              affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}}
              ins(%r, %b : tensor<5x{rows}xf32>, tensor<{rows}x5xf32>) outs(%e : tensor<5x{rows}xf32>) {{
            ^bb0(%x: f32, %z: f32, %o: f32):
              %s = arith.addf %x, %z : f32
              linalg.yield %s : f32
          }} -> tensor<5x{rows}xf32>
          return %y : tensor<5x{rows}xf32>
        }}"""
        return kernel(text, [""] * 2, ENDS[-1], invariant)

    assert planned(3, invariant=False).family == "generic"
    assert planned(1, invariant=True).family == "reduce"
    with pytest.raises(UnsupportedError, match="kernels of two kinds") as caught:
        planned(3, invariant=True)
    assert caught.value.code == "LK4007"


AFFINE = "operandSegmentSizes = array<i32: 1, 1, 1>, "
ROWS = {
    "softmax": ("softmax", "axis = 1 : i64, log = false", 0),
    "log_softmax": ("softmax", "axis = 1 : i64, log = true", 0),
    "layer_norm": ("layer_norm", f"{AFFINE}normalized_rank = 1 : i64, epsilon = 1.0e-5 : f64", 2),
    "rms_norm": ("rms_norm", "normalized_rank = 1 : i64, epsilon = 1.0e-5 : f64", 1),
}


@pytest.mark.parametrize("length", [40, 2500])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, length: int) -> None:
    op, attributes, affine = ROWS[name]
    generator = np.random.default_rng(4)
    x = random_array(generator, (9, length), "f32")
    extra = [random_array(generator, (length,), "f32") for _ in range(affine)]
    whole = run(op, attributes, [x, *extra], x.shape, "f32", ENDS[-1])
    for rows in (1, 4):
        found = run(op, attributes, [x[:rows], *extra], (rows, length), "f32", ENDS[-1])
        assert_same(found, whole[:rows], rows)


CONVOLUTIONS = {
    "windows": (16, 96, 3, 1),
    "pixels": (64, 32, 1, 1),
    "groups": (32, 32, 3, 4),
    "channels": (16, 16, 3, 16),
    "single_channels": (4, 4, 3, 4),
    "groups_of_pixels": (64, 64, 1, 4),
    "odd_groups": (12, 32, 3, 4),
    "odd_groups_of_pixels": (20, 32, 1, 4),
    "multiplied_channels": (4, 16, 3, 4),
    "taps_that_join": (32, 32, 4, 4),
    "whole_steps": (128, 32, 3, 4),
}


@pytest.mark.parametrize(("element", "level"), [("f32", ENDS[-1]), *(("bf16", level) for level in levels("bf16")[-2:])])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, element: str, level: str) -> None:
    """Output channels, groups and images beside each other."""
    channels, outputs, kernel_size, groups = CONVOLUTIONS[name]
    generator, pad, side = np.random.default_rng(6), kernel_size // 2, 5
    x = random_array(generator, (2, side, side, channels), element)
    filters = random_array(generator, (outputs, channels // groups, kernel_size, kernel_size), element)

    def convolved(image: Array, part: Array, own: int) -> Array:
        attributes = (
            "accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>, strides = array<i64: 1, 1>, "
            f"groups = {own} : i64, padding = array<i64: {pad}, {pad}, {pad}, {pad}>"
        )
        out = side + 1 - kernel_size % 2
        shape = (len(image), out, out, len(part))
        return run("conv", attributes, [image, part], shape, element, level, ["", "w"], "f32")

    whole = convolved(x, filters, groups)
    assert_same(convolved(x[1:], filters, groups), whole[1:], "one image")
    for parts in (2, 4):
        here = outputs // parts
        own, image = (1, x) if groups == 1 else (groups // parts, x[..., : channels // parts])
        assert_same(convolved(image, filters[:here], own), whole[..., :here], f"one of {parts} parts")


@pytest.mark.parametrize("channels_last", [False, True])
def test_group_norms(channels_last: bool) -> None:
    generator = np.random.default_rng(7)
    x = random_array(generator, (2, 50, 32) if channels_last else (2, 32, 50), "f32")
    affine = [random_array(generator, (32,), "f32") for _ in range(2)]

    def normed(part: Array, groups: int) -> Array:
        own = [each[: 4 * groups] for each in affine]
        attributes = f"{AFFINE}groups = {groups} : i64, epsilon = 1.0e-5 : f64, "
        attributes += f"channels_last = {str(channels_last).lower()}"
        return run("group_norm", attributes, [part, *own], part.shape, "f32", ENDS[-1])

    whole = normed(x, 8)
    for groups in (4, 2, 1):
        part = (..., slice(4 * groups)) if channels_last else (slice(None), slice(4 * groups))
        assert_same(normed(x[part], groups), whole[part], groups)


@pytest.mark.parametrize("length", [40, 2500])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_reductions(kind: str, length: int) -> None:
    """What is kept may shrink to one: that does not change the direction in which is summed."""
    x = random_array(np.random.default_rng(5), (3, length, 24), "f32")

    def reduced(axes: str, array: Array, result: Shape) -> Array:
        attributes = f'axes = array<i64: {axes}>, keep_dims = false, kind = "{kind}"'
        return run("reduce", attributes, [array], result, "f32", ENDS[-1])

    middle, outer, last = reduced("1", x, (3, 24)), reduced("0, 1", x, (24,)), reduced("1, 2", x, (3,))
    for columns in (12, 3, 1):
        assert_same(reduced("1", x[:1, :, :columns], (1, columns)), middle[:1, :columns], columns)
        assert_same(reduced("0, 1", x[..., :columns], (columns,)), outer[:columns], columns)
    assert_same(reduced("1, 2", x[:1], (1,)), last[:1], "one row")
    turned = np.ascontiguousarray(x.transpose(1, 0, 2))
    between = reduced("0, 2", turned, (3,))
    assert_same(reduced("0, 2", turned[:, :1], (1,)), between[:1], "one between")
