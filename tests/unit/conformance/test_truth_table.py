"""The truth table knows every op that capture accepts, and its judge tells right from wrong."""

from __future__ import annotations

import math

import pytest
import torch

from lowerkit.parity.judge.operators import judge_operator
from lowerkit.parity.judge.units import judge
from tests.support.truth_table.cells import cells
from tests.support.truth_table.elsewhere import unaccounted
from tests.support.truth_table.operator_cells import OperatorCell
from tests.support.truth_table.registry import HIGHEST_DEGREE, SETTINGS, rows
from tests.support.truth_table.suite import find_cell, flat, run_cells
from tests.support.truth_table.values import DTYPES, special_values


def test_every_op_that_capture_accepts_is_a_row_or_has_a_reason() -> None:
    """A new version of PyTorch that brings an op fails here until the op is looked at."""
    assert unaccounted() == []


def test_words_and_lists_of_an_op_are_stated() -> None:
    """The table fills in numbers by itself; which words an op takes, it cannot know."""
    unset = {
        f"{name}: {argument.name}"
        for name, row in rows().items()
        for argument in row.overload._schema.arguments
        if name not in SETTINGS and any(word in str(argument.type) for word in ("str", "List", "int[]"))
    }
    assert unset == set()


def test_every_row_has_cells_of_every_element_type() -> None:
    taken = {name: set[str]() for name in rows()}
    for cell in cells().values():
        taken[cell.row.name] |= set(cell.dtypes)
    lacking = {name: set(DTYPES) - types for name, types in taken.items() if name not in ("logical_not.default",)}
    assert not {name: types for name, types in lacking.items() if types}


def test_special_values_are_special() -> None:
    floats = special_values("f32")
    assert floats.isnan().any() and floats.isposinf().any() and floats.isneginf().any()
    assert (floats.abs() < torch.finfo(torch.float32).tiny).any() and torch.signbit(floats[floats == 0]).any()
    for name in ("i64", "i32", "i16", "i8", "u8"):
        limits = torch.iinfo(DTYPES[name])
        assert {limits.min, limits.max} <= set(special_values(name).tolist())


@pytest.mark.parametrize(
    ("ours", "eager", "exact", "verdict"),
    [
        (1.0, 1.0, 1.0, "passed"),
        (math.nan, math.nan, math.nan, "passed"),
        (1.0 + 2**-22, 1.0, 1.0, "passed"),
        (1.0 + 2**-20, 1.0, 1.0, "wrong"),
        (1.0, math.nan, math.nan, "wrong"),
        (math.inf, math.nan, math.nan, "wrong"),
        (math.nan, 1.0, 1.0, "wrong"),
        (0.0, -0.0, -0.0, "wrong"),
        (5.0, math.inf, 5.0, "better"),
        (5.0, 5.1, 5.0, "better"),
        (5.1, 5.2, 5.0, "better"),
        (5.3, 5.1, 5.0, "wrong"),
    ],
)
def test_the_judge(ours: float, eager: float, exact: float, verdict: str) -> None:
    one, other = torch.tensor([ours]), torch.tensor([eager])
    finding = judge(one, other, torch.tensor([exact], dtype=torch.float64))
    assert ("wrong" if finding.wrong else "better" if finding.better else "passed") == verdict


def test_the_judge_takes_integers_and_types_by_bits() -> None:
    assert judge(torch.tensor([1]), torch.tensor([2]), None).wrong
    assert judge(torch.tensor([1], dtype=torch.int32), torch.tensor([1]), None).wrong
    assert judge(torch.tensor([True]), torch.tensor([True]), None) == judge(torch.tensor([1]), torch.tensor([1]), None)


def test_cells_of_operators_are_found_by_name_and_judged() -> None:
    """Special values, moved memory and extents of 0 and 1 go into PyTorch's own samples."""
    forms = ("drawn", "strided", "nan", "-inf", "zeros", "large", "rank0", "empty:5", "one:5")
    names = [f"cumsum#0[f32]/{form}" for form in forms]
    assert [find_cell(name).name for name in names] == names
    assert find_cell("cumsum#0[f32]/nan").tensors()[0].isnan().sum() == 1
    assert not find_cell("cumsum#0[f32]/strided").tensors()[0].is_contiguous()
    assert 0 in find_cell("cumsum#0[f32]/empty:5").tensors()[0].shape
    results = run_cells([find_cell(name) for name in names])
    assert [result for result in results if result.verdict not in ("passed", "undefined")] == []


def test_the_judge_of_operators() -> None:
    value = torch.tensor([1.0, math.nan, math.inf, -0.0])

    def wrong(ours: torch.Tensor) -> str:
        return judge_operator("cumsum", [value], ours, value, None, ties=False).wrong

    assert not wrong(value.clone())
    assert wrong(torch.tensor([1.1, math.nan, math.inf, -0.0]))
    assert wrong(torch.tensor([1.0, 1.0, math.inf, -0.0]))
    assert wrong(torch.tensor([1.0, math.nan, -math.inf, -0.0]))
    assert wrong(torch.tensor([1.0, math.nan, math.inf, 0.0]))  # moved values keep the sign of a zero
    assert wrong(value.double())


def test_what_is_exact_beside_eager_is_better() -> None:
    """The normalized value of one element is 0; the operator in float64 leaves 1e-13, eager 1e-4."""
    exact = torch.tensor([1.1e-13, 2.4e-14], dtype=torch.float64)
    eager = torch.tensor([-8.3e-5, 2.9e-5])
    assert judge_operator("batch_norm", [], torch.zeros(2), eager, exact, ties=False).better
    assert judge_operator("batch_norm", [], torch.full((2,), 2e-5), eager, exact, ties=False).wrong


def test_a_result_has_the_shape_that_is_declared() -> None:
    """Of a matrix without elements eager's ``addmv`` keeps the addend's shape, against its own meta function."""
    cell = find_cell("addmv#2[f32]/empty:10")
    assert isinstance(cell, OperatorCell)
    tensors = cell.tensors()
    (eager,) = flat(cell.call(tensors))
    (finding,) = cell.judge(tensors, [eager.expand(5)], [eager])
    assert finding.better and not finding.wrong


def test_degrees_of_polynomials_end() -> None:
    """At 2^63 eager's recurrences do not."""
    name = "special_laguerre_polynomial_l.default()[i64,i64]/grid"
    assert int(find_cell(name).tensors()[-1].max()) == HIGHEST_DEGREE
