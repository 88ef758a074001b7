"""Insertions of slices into operands on the simulated device: in place, where numbers, extents or data say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cuda.test_movement import copies
from tests.support.region_kernels import random
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda
from tests.support.targets.cuda_rows import hold, spills

Array = np.ndarray[Any, Any]


def insertion(source: str, table: str, where: str, before: str = "", more: tuple[str, ...] = ()) -> RegionView:
    body = f"{before}\n%r = tensor.insert_slice %a0 into %a1{where} : {source} into {table}"
    return copies([source, table, *more], body, table)


FIXED: dict[str, tuple[str, str, str]] = {
    "a token of a cache": ("1x4x1x8xf32", "1x4x64x8xf32", "[0, 0, 3, 0] [1, 4, 1, 8] [1, 1, 1, 1]"),
    "rows": ("2x300xbf16", "9x300xbf16", "[5, 0] [2, 300] [1, 1]"),
    "long rows": ("3x2500xi8", "5x2500xi8", "[1, 0] [3, 2500] [1, 1]"),
    "a corner": ("2x4xf16", "3x20xf16", "[1, 5] [2, 4] [1, 1]"),
    "gaps": ("2x5xi64", "7x20xi64", "[1, 2] [2, 5] [3, 4]"),
    "bits": ("2x20xi1", "3x20xi1", "[1, 0] [2, 20] [1, 1]"),
    "fewer dims": ("7xf64", "9x20xf64", "[4, 3] [1, 7] [1, 2]"),
    "one number": ("1xi32", "40xi32", "[39] [1] [1]"),
}


def arrays(source: str, table: str) -> list[Array]:
    found: list[Array] = []
    for seed, text in enumerate((source, table)):
        *sizes, element = text.split("x")
        found.append(random([int(size) for size in sizes], element, seed))
    return found


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in FIXED), ("rows", "sm_80")])
def test_fixed_places(name: str, level: str) -> None:
    source, table, where = FIXED[name]
    view = insertion(f"tensor<{source}>", f"tensor<{table}>", where)
    planned = hold(view, "insert", arrays(source, table), level)
    assert planned.function.in_place == {0: 1}


@pytest.mark.parametrize("rows", range(1, 10))
def test_open_sizes_from_an_end(rows: int) -> None:
    before = """%c0 = arith.constant 0 : index
        %c9 = arith.constant 9 : index
        %n = tensor.dim %a0, %c0 : tensor<?x20xf16>
        %o = arith.subi %c9, %n : index"""
    view = insertion("tensor<?x20xf16>", "tensor<9x20xf16>", "[%o, 0] [%n, 20] [1, 1]", before)
    hold(view, "insert", arrays(f"{rows}x20xf16", "9x20xf16"))


BY_DATA = """%e = tensor.extract %a2[] : tensor<i64>
    %zero = arith.constant 0 : i64
    %size = arith.constant 11 : i64
    %from_end = arith.addi %e, %size : i64
    %counts = arith.cmpi sge, %e, %zero : i64
    %at = arith.select %counts, %e, %from_end : i64
    %p = arith.index_cast %at : i64 to index"""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_places_by_data(dtype: str) -> None:
    """Negative ones count from the end; what would lie outside is left out, and nothing beside it is touched."""
    source, table = f"2x3x5x{dtype}", f"2x11x5x{dtype}"
    view = insertion(
        f"tensor<{source}>", f"tensor<{table}>", "[0, %p, 0] [2, 3, 5] [1, 1, 1]", BY_DATA, ("tensor<i64>",)
    )
    compiled = compile_cuda(view, fast=True)
    assert compiled.planned.family == "insert" and compiled.planned.function.in_place == {0: 1}
    given = arrays(source, table)
    for place in (0, 1, 8, -11, -3):
        inputs = [*given, np.array(place)]
        (wanted,) = interpret(view.clone_module(), inputs, function="region")
        np.testing.assert_array_equal(run_cuda(compiled, inputs)[0], wanted)
    for place, kept in ((10, 1), (11, 0), (-13, 1), (2**40, 0)):
        wanted, start = given[1].copy(), place if place >= 0 else place + 11
        for number in range(3):
            if 0 <= start + number < 11:
                wanted[:, start + number] = given[0][:, number]
        assert (wanted != given[1]).any() == bool(kept)
        np.testing.assert_array_equal(run_cuda(compiled, [*given, np.array(place)])[0], wanted)


def test_an_element_of_a_list_of_places() -> None:
    before = """%c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %e = tensor.extract %a2[%c1, %c2] : tensor<2x3xi32>
        %p = arith.index_cast %e : i32 to index"""
    where = "[%p, 0] [1, 40] [1, 1]"
    view = insertion("tensor<1x40xf32>", "tensor<6x40xf32>", where, before, ("tensor<2x3xi32>",))
    places = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    hold(view, "insert", [*arrays("1x40xf32", "6x40xf32"), places])


def test_what_is_read_besides_is_not_changed_in_place() -> None:
    """The rows move down within one operand: a kernel that wrote what it reads would be wrong."""
    view = copies(
        ["tensor<6x8xf32>"],
        """%s = tensor.extract_slice %a0[0, 0] [5, 8] [1, 1] : tensor<6x8xf32> to tensor<5x8xf32>
        %r = tensor.insert_slice %s into %a0[1, 0] [5, 8] [1, 1] : tensor<5x8xf32> into tensor<6x8xf32>""",
        "tensor<6x8xf32>",
    )
    planned = hold(view, "copy", [random((6, 8), "f32")])
    assert planned.function.in_place == {}


def test_a_place_that_is_a_float_is_refused() -> None:
    before = """%c0 = arith.constant 0 : index
        %e = tensor.extract %a2[%c0] : tensor<1xf32>
        %i = arith.fptosi %e : f32 to i64
        %f = arith.sitofp %i : i64 to f32
        %g = math.erf %f : f32
        %j = arith.fptosi %g : f32 to i64
        %p = arith.index_cast %j : i64 to index"""
    view = insertion("tensor<1x8xf32>", "tensor<6x8xf32>", "[%p, 0] [1, 8] [1, 1]", before, ("tensor<1xf32>",))
    assert dict(select_kernels(view, "sm_90")[1])["insert"] == "a place by math.erf has no translation"


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
def test_nothing_is_spilled_at_full_size(level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    view = insertion(
        "tensor<1x32x1x128xbf16>", "tensor<1x32x8192x128xbf16>", "[0, 0, 7, 0] [1, 32, 1, 128] [1, 1, 1, 1]"
    )
    assert set(spills(view, level).values()) == {0}
