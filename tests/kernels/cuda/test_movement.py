"""Movements by index and by place on the simulated device, against the op's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import GatherOp, ScatterOp
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import DTYPES, random, tensor
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda
from tests.support.targets.cuda_rows import hold, spills, with_epilogue

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]
Case = tuple[Shape, Sequence[int], Shape, Sequence[int], str, str, int]

CASES: dict[str, Case] = {
    "short slices": ((9, 5), (9, 5), (4, 2), (4, 2), "f32", "i64", 0),
    "an embedding": ((9, 40), (9, 40), (7, 2), (7, 2), "bf16", "i32", 0),
    "long slices": ((5, 1100), (5, 1100), (3,), (3,), "i1", "i64", 0),
    "an axis between": ((3, 9, 20), (3, 9, 20), (5,), (5,), "f16", "i8", 1),
    "scalars": ((9,), (9,), (4,), (4,), "f64", "i32", 0),
    "open slices": ((3, 5, None), (3, 5, 20), (None,), (40,), "i8", "i64", 1),
}


def places(size: Sequence[int], element: str, count: int) -> Array:
    """Positions in a table of ``count``, from both ends, some of them several times."""
    found = np.random.default_rng(2).integers(-count, count, size).astype(DTYPES[element])
    found.reshape(-1)[:2] = found.reshape(-1)[-1]
    return found


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in CASES), ("an embedding", "sm_80")])
def test_gather(name: str, level: str) -> None:
    shape, size, indices, lookups, element, index, axis = CASES[name]
    view = region([(shape, element), (indices, index)], lambda x, i: GatherOp.build(x, i, axis=axis))
    hold(view, "gather", [random(size, element), places(lookups, index, size[axis])], level)


def test_one_index_and_one_element() -> None:
    for shape in ((9, 30), (9,), (9, 1)):
        view = region([(shape, "f32"), ((), "i64")], GatherOp.build)
        hold(view, "gather", [random(shape, "f32"), np.array(-2)])


def test_an_index_outside_of_the_table_is_clamped() -> None:
    table, indices = random((5, 16), "f32"), np.array([7, -9, 5, 2**40, -(2**62), 4])
    compiled = compile_cuda(region([((5, 16), "f32"), ((6,), "i64")], GatherOp.build), fast=True)
    assert compiled.planned.family == "gather"
    (found,) = run_cuda(compiled, [table, indices])
    np.testing.assert_array_equal(found, table[[4, 0, 4, 4, 0, 4]])


@pytest.mark.parametrize("shape", [(6, 24), ("?", "?")], ids=str)
def test_an_embedding_with_an_epilogue(shape: tuple[int | str, ...]) -> None:
    operands = [tensor(("?" if "?" in shape else 9, shape[1]), "bf16"), tensor(shape[:1], "i64")]
    view = with_epilogue("gather", operands, shape, "bf16", "axis = 0 : i64")
    table, indices = random((9, 24), "bf16"), places((6,), "i64", 9)
    hold(view, "gather", [table, indices, random((24,), "bf16", 1), random((6, 24), "bf16", 2)], scale=4)


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("name", CASES)
def test_scatter(name: str, kind: str) -> None:
    """Equal indices follow one another, each rounded: results are those of a loop, bit for bit."""
    shape, size, indices, lookups, element, index, axis = CASES[name]
    if kind != "set" and element == "i1":
        return  # booleans are set alone
    updates = (*shape[:axis], *indices, *shape[axis + 1 :])
    view = region(
        [(shape, element), (indices, index), (updates, element)],
        lambda x, i, u: ScatterOp.build(x, i, u, axis=axis, kind=kind),
    )
    given = random((*size[:axis], *lookups, *size[axis + 1 :]), element, 5)
    inputs = [random(size, element), places(lookups, index, size[axis]), given]
    compiled = compile_cuda(view, fast=True)
    assert compiled.planned.family == "scatter"
    assert view.anchor is not None
    (wanted,) = view.anchor.reference(*inputs)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(run_cuda(compiled, inputs)[0], wanted)


def test_an_update_outside_of_the_table_is_left_out() -> None:
    table, updates = random((5, 16), "f32"), random((4, 16), "f32", 1)
    view = region([((5, 16), "f32"), ((4,), "i64"), ((4, 16), "f32")], ScatterOp.build)
    (found,) = run_cuda(compile_cuda(view, fast=True), [table, np.array([5, -6, 2, 2**40]), updates])
    table[2] = updates[2]
    np.testing.assert_array_equal(found, table)


def test_many_updates_of_short_slices_are_refused() -> None:
    view = region([((9,), "f32"), ((None,), "i64"), ((None,), "f32")], lambda *x: ScatterOp.build(*x, kind="add"))
    assert "updates of slices of 1; at most 4096" in dict(select_kernels(view, "sm_90")[1])["scatter"]


def copies(arguments: Sequence[str], body: str, result: str) -> RegionView:
    """A region of ``%a0``, ``%a1``, ... whose body makes ``%r``."""
    given = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(arguments))
    return RegionView.from_text(f"func.func @region({given}) -> {result} {{\n{body}\nreturn %r : {result}\n}}", "copy")


def concat(axis: int, parts: Sequence[str], result: str) -> RegionView:
    names = ", ".join(f"%a{number}" for number in range(len(parts)))
    return copies(parts, f"%r = tensor.concat dim({axis}) {names} : ({', '.join(parts)}) -> {result}", result)


COPIES: dict[str, tuple[RegionView, list[Array]]] = {
    "the last dim": (
        concat(2, ["tensor<2x5x1xbf16>", "tensor<2x5x16xbf16>"], "tensor<2x5x17xbf16>"),
        [random((2, 5, 1), "bf16"), random((2, 5, 16), "bf16", 1)],
    ),
    "an open dim stays": (
        concat(1, ["tensor<?x3x40xf32>", "tensor<?x2x40xf32>"], "tensor<?x5x40xf32>"),
        [random((2, 3, 40), "f32"), random((2, 2, 40), "f32", 1)],
    ),
    "open parts": (
        concat(0, ["tensor<?x40xi1>", "tensor<?x40xi1>", "tensor<1x40xi1>"], "tensor<?x40xi1>"),
        [random((2, 40), "i1"), random((3, 40), "i1", 1), random((1, 40), "i1", 2)],
    ),
    "padding": (
        copies(
            ["tensor<3x20xf32>"],
            """%z = arith.constant 2.5 : f32
            %r = tensor.pad %a0 low[1, 0] high[2, 3] {
            ^bb0(%i: index, %j: index):
              tensor.yield %z : f32
            } : tensor<3x20xf32> to tensor<6x23xf32>""",
            "tensor<6x23xf32>",
        ),
        [random((3, 20), "f32")],
    ),
    "an insertion into a concatenation": (
        copies(
            ["tensor<3x20xf16>", "tensor<2x4xf16>", "tensor<1x20xf16>"],
            """%c = tensor.concat dim(0) %a2, %a0 : (tensor<1x20xf16>, tensor<3x20xf16>) -> tensor<4x20xf16>
            %r = tensor.insert_slice %a1 into %c[1, 5] [2, 4] [1, 1] : tensor<2x4xf16> into tensor<4x20xf16>""",
            "tensor<4x20xf16>",
        ),
        [random((3, 20), "f16"), random((2, 4), "f16", 1), random((1, 20), "f16", 2)],
    ),
    "a slice of a concatenation": (
        copies(
            ["tensor<3x20xi64>", "tensor<2x20xi64>"],
            """%c = tensor.concat dim(0) %a0, %a1 : (tensor<3x20xi64>, tensor<2x20xi64>) -> tensor<5x20xi64>
            %r = tensor.extract_slice %c[1, 2] [2, 9] [2, 2] : tensor<5x20xi64> to tensor<2x9xi64>""",
            "tensor<2x9xi64>",
        ),
        [random((3, 20), "i64"), random((2, 20), "i64", 1)],
    ),
    "a slice that drops a dim": (
        copies(
            ["tensor<9x20xi8>"],
            "%r = tensor.extract_slice %a0[1, 3] [1, 7] [1, 2] : tensor<9x20xi8> to tensor<7xi8>",
            "tensor<7xi8>",
        ),
        [random((9, 20), "i8")],
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    view, inputs = COPIES[name]
    hold(view, "copy", inputs)


OPEN = """%c0 = arith.constant 0 : index
        %c2 = arith.constant 2 : index
        %n = tensor.dim %a0, %c0 : tensor<?x20xf16>"""


@pytest.mark.parametrize("rows", [3, 4, 7])
def test_places_and_sizes_by_open_extents(rows: int) -> None:
    """A slice from the end, its padding, and what is inserted behind it."""
    result = "tensor<?x20xf16>"
    sliced = copies(
        [result],
        f"""{OPEN}
        %o = arith.subi %n, %c2 : index
        %r = tensor.extract_slice %a0[%o, 0] [2, 20] [1, 1] : {result} to tensor<2x20xf16>""",
        "tensor<2x20xf16>",
    )
    hold(sliced, "copy", [random((rows, 20), "f16")])
    padded = copies(
        [result, "tensor<2x4xf16>"],
        f"""{OPEN}
        %z = arith.constant 2.5 : f16
        %o = arith.subi %n, %c2 : index
        %s = tensor.extract_slice %a0[2, 0] [%o, 20] [1, 1] : {result} to {result}
        %p = tensor.pad %s low[%n, 0] high[1, 0] {{
        ^bb0(%i: index, %j: index):
          tensor.yield %z : f16
        }} : {result} to {result}
        %r = tensor.insert_slice %a1 into %p[%o, 3] [2, 4] [1, 1] : tensor<2x4xf16> into {result}""",
        result,
    )
    hold(padded, "copy", [random((rows, 20), "f16"), random((2, 4), "f16", 1)])


def test_a_slice_at_a_place_that_depends_on_data_is_refused() -> None:
    view = copies(
        ["tensor<9x20xf16>", "tensor<i64>"],
        """%e = tensor.extract %a1[] : tensor<i64>
        %p = arith.index_cast %e : i64 to index
        %r = tensor.extract_slice %a0[%p, 0] [2, 20] [1, 1] : tensor<9x20xf16> to tensor<2x20xf16>""",
        "tensor<2x20xf16>",
    )
    assert dict(select_kernels(view, "sm_90")[1])["copy"] == "a place that depends on data"


FULL = {
    "gather": region([((32000, 4096), "bf16"), ((8, 512), "i64")], GatherOp.build),
    "set": region([((1024, 4096), "bf16"), ((128,), "i64"), ((128, 4096), "bf16")], ScatterOp.build),
    "add": region(
        [((1024, 4096), "bf16"), ((128,), "i64"), ((128, 4096), "bf16")],
        lambda x, i, u: ScatterOp.build(x, i, u, kind="add"),
    ),
    "concat": concat(1, ["tensor<8x1x768xbf16>", "tensor<8x196x768xbf16>"], "tensor<8x197x768xbf16>"),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    assert set(spills(FULL[name], level).values()) == {0}
