"""ONNX's cases, a few of each kind, through the suite, the backend and the command line."""

from __future__ import annotations

import json
import unittest
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from lowerkit.conformance.onnx_backend import LowerkitBackend, PreparedModel
from lowerkit.conformance.onnx_cases import KINDS, cases_of, read_case, read_index, suite_folder
from lowerkit.conformance.onnx_suite import OnnxSuite, compare_outputs
from lowerkit.conformance.results import CaseResult, write_results
from lowerkit.conformance.suite import WrongResultError
from lowerkit.errors import UnsupportedError
from tests.unit.capture.onnx.one_node_models import one_node
from tests.unit.cli.conftest import RunCommand, lowerkit_command

__all__ = ["lowerkit_command"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return suite_folder()


def test_the_folder_holds_every_kind(folder: Path) -> None:
    index = read_index(folder)
    assert {case.kind for case in index} == set(KINDS)
    assert len({case.name for case in index}) == len(index) > 1500
    assert [case.name for case in cases_of(index, ("simple",))] == [
        case.name for case in index if case.kind == "simple"
    ]
    expanded = next(case for case in index if case.name == "test_gelu_default_1_expanded")
    assert expanded.family == "Gelu"


@pytest.mark.parametrize(
    "name",
    [
        "test_add", "test_div_int8", "test_gru_bidirectional", "test_layer_normalization_2d_axis0", "test_max_uint64",
        "test_top_k_same_values", "test_qlinearmatmul_2D_uint8_float32", "test_reduce_l1_empty_set",
        "test_shrink_hard_expanded_ver18", "test_slice_neg_steps", "test_Conv1d", "test_sign_model",
    ],
)  # fmt: skip
def test_cases_pass(name: str, folder: Path) -> None:
    OnnxSuite(folder).run(name)


def test_a_pass_names_the_inputs_that_are_compiled_in(folder: Path) -> None:
    assert OnnxSuite(folder).run("test_reshape_reduced_dims").notes == ["input 'shape' is compiled in"]


@pytest.mark.parametrize("name", ["test_string_concat", "test_identity_sequence", "test_cast_FLOAT_to_FLOAT8E5M2"])
def test_foreign_types_are_rejected(name: str, folder: Path) -> None:
    with pytest.raises(UnsupportedError):
        OnnxSuite(folder).run(name)


@pytest.mark.parametrize(
    "outputs",
    [
        [np.zeros(3, np.float32)],
        [np.ones(2, np.float32)],
        [np.ones(3, np.float64)],
        [np.array([1, 1, np.nan], np.float32)],
        [],
    ],
)
def test_wrong_outputs_are_told(outputs: list[object]) -> None:
    with pytest.raises(WrongResultError):
        compare_outputs(outputs, [np.ones(3, np.float32)], 1e-3, 1e-7)


def test_nan_equals_nan() -> None:
    compare_outputs([np.array([np.nan, 1.0005])], [np.array([np.nan, 1])], 1e-3, 1e-7)


def test_backend_compiles_for_each_shape() -> None:
    model = one_node("Expand", {"x": np.ones((1, 3), np.float32), "shape": np.array([2, 3])})
    prepared = PreparedModel(model)
    assert prepared.fixed_inputs == ["shape"]
    x = np.arange(3, dtype=np.float32)[None]
    for rows in (2, 4, 2):
        (found,) = prepared.run([x, np.array([rows, 3])])
        np.testing.assert_array_equal(found, np.broadcast_to(x, (rows, 3)))


def test_backend_runs_a_node_and_skips_what_is_refused(folder: Path) -> None:
    x = np.array([-1.0, 2.0], np.float32)
    node = helper.make_node("Relu", ["x"], ["y"])
    (found,) = LowerkitBackend.run_node(node, [x], outputs_info=[(x.dtype, x.shape)])
    np.testing.assert_array_equal(found, np.maximum(x, 0))
    assert LowerkitBackend.supports_device("CPU") and not LowerkitBackend.supports_device("CUDA")
    case = next(case for case in read_index(folder) if case.name == "test_string_concat")
    model, sets = read_case(folder, case)
    with pytest.raises(unittest.SkipTest):
        LowerkitBackend.run_model(model, sets[0].inputs)


def test_command(lowerkit_command: RunCommand, tmp_path: Path) -> None:
    path, before = tmp_path / "results.json", tmp_path / "before.json"
    write_results(before, [CaseResult("test_abs", "wrong", "", 1.0, "Abs")])
    arguments = ["conformance", "onnx", "--filter", "^test_(abs|string_concat)$", "--output", path]
    outcome = lowerkit_command(*arguments, "--compare", before, "--junit", tmp_path / "junit.xml", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["schema"] == "lowerkit.conformance" and document["suite"] == "onnx"
    assert document["summary"] == {
        "total": 2,
        "passed": 1,
        "rejected": 1,
        "wrong": 0,
        "crashed": 0,
        "hung": 0,
        "skipped": 0,
    }
    assert [change["name"] for change in document["changes"]] == ["test_abs", "test_string_concat"]
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == 2
    written = path.read_text()
    assert lowerkit_command(*arguments, "--resume", "--quiet").code == 0
    assert path.read_text() == written  # nothing ran again: the times are those of before


def test_command_refuses_bad_options(lowerkit_command: RunCommand) -> None:
    for arguments in (["--kind", "odd"], ["--workers", 0], ["--resume"], ["--filter", "("], ["--time-limit", 0]):
        assert lowerkit_command("conformance", "onnx", *arguments).code == 2, arguments
