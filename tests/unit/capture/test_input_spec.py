from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowerkit.capture.input_spec import (
    DynamicDim,
    Expected,
    InputSpec,
    dims_of,
    example_arrays,
    parse_dynamic,
    parse_inputs,
)
from lowerkit.errors import InputError, UsageError
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.runtimes.manifest import Dim


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x:1x3x224x224:f32", InputSpec("x", (1, 3, 224, 224), "f32")),
        ("x:4", InputSpec("x", (4,), None)),
        ("x:f16", InputSpec("x", None, "f16")),
        ("x:scalar:i64", InputSpec("x", (), "i64")),
        ("x::f32", InputSpec("x", (), "f32")),
        ("x:1x3:float32", InputSpec("x", (1, 3), "f32")),
        ("gpu_0/data_0:1x3:bf16", InputSpec("gpu_0/data_0", (1, 3), "bf16")),
        ("serving:0:1x3:bool", InputSpec("serving:0", (1, 3), "i1")),
        ("x:batchx3:f32", InputSpec("x", ("batch", 3), "f32")),
        ("x=@a/b.npy", InputSpec("x", file=Path("a/b.npy"))),
    ],
)
def test_inputs(text: str, spec: InputSpec) -> None:
    assert parse_inputs([text]) == [spec]


@pytest.mark.parametrize("text", ["", "x", "x:", ":1x3", "x:1x-3", "x:1x3:f33", "x:1xx3", "=@x.npy", "x=@", "x:1.5"])
def test_inputs_that_cannot_be_parsed(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inputs([text])
    assert caught.value.code == "LK1004"


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_inputs(["x", "y:1", "y:2", "z:1:q8-"])
    assert len(caught.value.details) == 3


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("x:0=1..64", DynamicDim("x", 0, "x_0", 1, 64)),
        ("x:1=batch:2..8", DynamicDim("x", 1, "batch", 2, 8)),
        ("x:1=batch", DynamicDim("x", 1, "batch", 1, None)),
        ("a/b:2=3..", DynamicDim("a/b", 2, "a_b_2", 3, None)),
    ],
)
def test_dynamic(text: str, dim: DynamicDim) -> None:
    assert parse_dynamic([text]) == [dim]


@pytest.mark.parametrize("texts", [["x=1..2"], ["x:0=8..2"], ["x:0=1..2", "x:0=1..3"], ["x:0=n:1..2", "y:0=n:1..3"]])
def test_dynamic_that_cannot_be_parsed(texts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dynamic(texts)
    assert caught.value.code == "LK1004"


def test_dims_of_one_name_are_one() -> None:
    dims = dims_of(parse_dynamic(["x:0=n:1..8", "y:0=n:1..8", "y:1=m:2..4"]))
    assert dims == [Dim("n", 1, 8), Dim("m", 2, 4)]


@given(st.text(max_size=40))
def test_parsing_never_fails_otherwise(text: str) -> None:
    for parse in (parse_inputs, parse_dynamic):
        with contextlib.suppress(UsageError):
            parse([text])


@pytest.mark.parametrize("dtype", list(NUMPY_DTYPES))
def test_random_arrays(dtype: str) -> None:
    expected = [Expected("x", dtype, (2, 3))]
    (first,) = example_arrays(expected, [], seed=1)
    (again,) = example_arrays(expected, [], seed=1)
    (other,) = example_arrays(expected, [], seed=2)
    assert first.dtype == NUMPY_DTYPES[dtype]
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_symbolic_extents_take_a_value_in_range() -> None:
    (array,) = example_arrays([Expected("x", "f32", (None, 3))], [], parse_dynamic(["x:0=7..9"]))
    assert array.shape == (7, 3)
    (array,) = example_arrays([Expected("x", "f32", (None, 3))], [], parse_dynamic(["x:0=1..2"]))
    assert array.shape == (2, 3)


def test_values_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.full((2, 2), 7, np.int64))
    (array,) = example_arrays([Expected("x", "i64", (2, 2))], [InputSpec("x", file=path)])
    assert array.tolist() == [[7, 7], [7, 7]]


def test_all_mismatches_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 2), np.float64))
    expected = [Expected("x", "f32", (3, 2)), Expected("y"), Expected("z", "f32", (1,))]
    with pytest.raises(InputError) as caught:
        example_arrays(expected, [InputSpec("x", file=path), InputSpec("w", (1,))])
    text = str(caught.value)
    assert caught.value.code == "LK1003"
    assert "it has element type f64, but the model takes f32" in text
    assert "it has shape 2x2, but the model takes 3x2" in text
    assert "'y' is missing" in text
    assert "the model has no input 'w'" in text


@pytest.mark.parametrize(
    ("content", "code"), [(None, "LK1001"), (b"", "LK1002"), (b"nonsense", "LK1002"), (b"\x93NUMPY\x01\x00", "LK1002")]
)
def test_bad_files(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        example_arrays([Expected("x", "f32", (1,))], [InputSpec("x", file=path)])
    assert caught.value.code == code


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError) as caught:
        example_arrays([Expected("x")], [InputSpec("x", file=path)])
    assert caught.value.code == "LK1002"
