from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from lowerkit.capture.load_model import capture_path
from lowerkit.errors import CaptureError, InputError, LowerkitError
from lowerkit.runtimes.manifest import Dim, TensorSpec
from tests.unit.capture.running import assert_same_as_eager

SOURCE = """
    import torch
    from dataclasses import dataclass
    from neighbour import SCALE

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
        def forward(self, x, bias=None):
            y = self.linear(x) * SCALE
            return y if bias is None else y + bias

    def make():
        return Model().eval(), (torch.ones(3, 4),)

    def named():
        return Model().eval(), {"x": torch.ones(3, 4), "bias": torch.ones(2)}

    def single():
        return Model().eval(), torch.ones(3, 4)

    def fails():
        raise ValueError("no weights here")

    def wrong():
        return Model()

    NOT_CALLABLE = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "neighbour.py").write_text("SCALE = 2.0\n")
    return tmp_path


@pytest.mark.parametrize("factory", ["make", "single"])
def test_file(folder: Path, factory: str) -> None:
    text = f"{folder}/model.py:{factory}"
    program = capture_path(text)
    assert program.source == text
    assert program.signature.inputs == [TensorSpec("x", "f32", [3, 4])]
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs)


def test_keyword_inputs(folder: Path) -> None:
    program = capture_path(f"{folder}/model.py:named")
    assert [spec.name for spec in program.signature.inputs] == ["x", "bias"]


def test_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert capture_path("model:make").signature.inputs[0].shape == [3, 4]


def test_inputs_replace_those_of_the_factory(folder: Path) -> None:
    np.save(folder / "x.npy", np.full((5, 4), 2, np.float32))
    program = capture_path(f"{folder}/model.py:named", [f"x=@{folder}/x.npy"])
    assert [spec.shape for spec in program.signature.inputs] == [[5, 4], [2]]
    assert program.example_inputs is not None
    assert program.example_inputs[0].tolist() == [[2] * 4] * 5
    assert program.example_inputs[1].tolist() == [1, 1]


def test_dynamic_dims(folder: Path) -> None:
    for factory in ("make", "named"):
        program = capture_path(f"{folder}/model.py:{factory}", dynamic=["x:0=batch:2..64"])
        assert program.signature.dims == [Dim("batch", 2, 64)]
        assert program.signature.outputs[0].shape == ["batch", 2]


def test_element_type_option(folder: Path) -> None:
    program = capture_path(f"{folder}/model.py:make", dtype="bf16")
    assert program.signature.inputs[0].dtype == program.signature.outputs[0].dtype == "bf16"
    assert program.weights.spec("linear.weight")[0] == "bf16"


@pytest.mark.parametrize(
    ("text", "error", "code", "words"),
    [
        ("model.py:nobody", InputError, "LK1001", "make, named"),
        ("model.py:NOT_CALLABLE", InputError, "LK1001", "no function"),
        ("model.py:fails", CaptureError, "LK2001", "ValueError: no weights here"),
        ("model.py:wrong", CaptureError, "LK2001", "returned Model"),
        ("nobody.py:make", InputError, "LK1001", "does not exist"),
        ("broken.py:make", CaptureError, "LK2001", "SyntaxError"),
        ("raises.py:make", CaptureError, "LK2001", "ModuleNotFoundError"),
    ],
)
def test_factories_that_do_not_work(folder: Path, text: str, error: type[LowerkitError], code: str, words: str) -> None:
    (folder / "broken.py").write_text("def make(:\n")
    (folder / "raises.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(error) as caught:
        capture_path(f"{folder}/{text}")
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "raise SystemExit\ndef make(): ...\ndef of(x): ...\ndef small(size=3): ...\ndef _own(): ...",
            "M:make, M:small",
        ),
        ("def of(x): ...", "write a function without parameters"),
        ("def make(:", "such as M:make_model"),
    ],
)
def test_a_file_without_a_function_lists_those_that_may_be_meant(tmp_path: Path, source: str, words: str) -> None:
    """The file is not run for it."""
    path = tmp_path / "model.py"
    path.write_text(source)
    with pytest.raises(InputError, match="LK1002.*does not say which function makes the model") as caught:
        capture_path(str(path))
    assert caught.value.hint is not None
    assert words in caught.value.hint.replace(str(path), "M")


def test_the_line_of_a_failing_factory_is_named(folder: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        capture_path(f"{folder}/model.py:fails")
    line = textwrap.dedent(SOURCE).splitlines().index('    raise ValueError("no weights here")') + 1
    assert caught.value.location == f"{folder}/model.py:{line}"


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(InputError) as caught:
        capture_path("a_package_that.is_not_there:make")
    assert caught.value.code == "LK1001"


@pytest.mark.parametrize(
    ("inputs", "dynamic", "words"),
    [
        (["y:1:f32"], [], "the model has no input 'y'"),
        (["x:3:f32"], [], "x: "),
        ([], ["y:0=1..2"], "'y'"),
        ([], ["x:7=1..2"], "dim 7"),
    ],
)
def test_inputs_that_do_not_fit(folder: Path, inputs: list[str], dynamic: list[str], words: str) -> None:
    with pytest.raises(InputError) as caught:
        capture_path(f"{folder}/model.py:make", inputs, dynamic)
    assert caught.value.code == "LK1003"
    assert words in str(caught.value) or "'x'" in str(caught.value)
