from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import CaptureError, InputError, UnsupportedError
from lowerkit.program.locations import origin_of
from lowerkit.runtimes.manifest import TensorSpec
from tests.unit.capture.running import assert_same_as_eager, op_counts, operations


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Rotated(nn.Module):
    """Splits in half by arithmetic on a size, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        half = y.shape[-1] // 2
        position = torch.arange(y.shape[1])[None, :, None]
        return torch.cat((-y[..., half:], y[..., :half]), dim=-1) + position


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if x.dim() == 2:
            x = x * scale
        for _ in range(3):
            x = x + self.weight
        return x


def save_traced(path: Path, module: nn.Module, inputs: torch.Tensor) -> str:
    torch.jit.save(torch.jit.trace(module.eval(), inputs), str(path))
    return str(path)


def test_traced_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = save_traced(tmp_path / "model.pt", Rotated(), torch.randn(2, 5, 8))
    program = capture_path(path, ["x:2x5x8:f32"])
    assert program.signature.inputs == [TensorSpec("x", "f32", [2, 5, 8])]
    assert program.signature.outputs == [TensorSpec("output", "f32", [2, 5, 8])]
    assert program.signature.dims == []
    assert program.source == path
    assert not [name for name in op_counts(program) if "Int" in name or "item" in name]
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs)


def test_locations_survive_the_file(tmp_path: Path) -> None:
    path = save_traced(tmp_path / "model.pt", Rotated(), torch.randn(2, 5, 8))
    program = capture_path(path, ["x:2x5x8:f32"])
    (linear,) = [operation for operation in operations(program) if operation.name == "torch.aten.linear"]
    origin = origin_of(linear.location)
    assert origin.module == "inner"
    assert origin.source_line is not None
    assert origin.source_line.startswith(__file__)


def test_scripted_module_in_memory() -> None:
    torch.manual_seed(0)
    program = capture(torch.jit.script(Scripted().eval()), (torch.randn(3, 4),))
    assert program.weights.names() == ["weight"]
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs)


class Sums(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(-1, keepdim=True), x.sum([0, 1]) * sum(x.shape)


def test_sums_of_tensors_and_of_lists() -> None:
    x = torch.randn(2, 3, 4)
    for script in (torch.jit.trace(Sums(), x), torch.jit.script(Sums())):
        program = capture(script, (x,))
        assert program.example_inputs is not None
        assert_same_as_eager(program, program.example_inputs)


def test_element_type_option(tmp_path: Path) -> None:
    path = save_traced(tmp_path / "model.pt", nn.Linear(4, 2), torch.randn(2, 4))
    program = capture_path(path, ["input:2x4:f32"], dtype="bf16")
    assert program.signature.inputs[0].dtype == program.signature.outputs[0].dtype == "bf16"


def test_missing_and_unknown_inputs_name_those_of_the_model(tmp_path: Path) -> None:
    path = save_traced(tmp_path / "model.pt", Rotated(), torch.randn(2, 5, 8))
    with pytest.raises(InputError) as caught:
        capture_path(path, ["y:1:f32"])
    assert caught.value.code == "LK1003"
    assert "the model has no input 'y'" in str(caught.value)
    assert "input 'x'" in str(caught.value)
    assert "--input" in str(caught.value)


def test_inputs_that_the_model_rejects(tmp_path: Path) -> None:
    path = save_traced(tmp_path / "model.pt", Rotated(), torch.randn(2, 5, 8))
    with pytest.raises(CaptureError, match="2x5x7:f32"):
        capture_path(path, ["x:2x5x7:f32"])


def test_example_inputs_instead_of_specs(tmp_path: Path) -> None:
    path = save_traced(tmp_path / "model.pt", Rotated(), torch.randn(2, 5, 8))
    x = np.ones((2, 5, 8), np.float32)
    program = capture_path(path, example_inputs=[x])
    assert program.example_inputs is not None
    assert np.array_equal(program.example_inputs[0], x)
    with pytest.raises(InputError) as caught:
        capture_path(path, example_inputs=[x, x])
    assert caught.value.code == "LK1003"


class Joins(nn.Module):
    def forward(
        self, pair: tuple[torch.Tensor, torch.Tensor], items: list[torch.Tensor], x: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"joined": items[0].sum() * pair[0] - items[1].max(), "x": x * pair[1]}


def test_tuples_and_lists_in_the_signature(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(Joins()).save(str(path))
    specs = ["pair_0:5:f32", "pair_1:scalar:f32", "items_0:2:f32", "items_1:3:f32", "x:4:f32"]
    program = capture_path(path, specs)
    assert [spec.name for spec in program.signature.inputs] == ["pair_0", "pair_1", "items_0", "items_1", "x"]
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs)
    assert program.input_tree["names"] == ["pair", "items", "x"]
    with pytest.raises(UnsupportedError, match="items_0"):
        capture_path(path, ["pair_0:5:f32", "pair_1:scalar:f32", "x:4:f32"])


def test_inputs_that_are_no_tensors(tmp_path: Path) -> None:
    class Lists(nn.Module):
        def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
            return x[0]

    path = tmp_path / "model.pt"
    torch.jit.script(Lists()).save(str(path))
    with pytest.raises(UnsupportedError) as caught:
        capture_path(path)
    assert "List[Tensor]" in str(caught.value)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    data = Path(save_traced(tmp_path / "whole.pt", Rotated(), torch.randn(2, 5, 8))).read_bytes()
    cut = tmp_path / "cut.pt"
    for sixteenth in range(16):
        cut.write_bytes(data[: len(data) * sixteenth // 16])
        with pytest.raises(InputError) as caught:
            capture_path(cut, ["x:2x5x8:f32"])
        assert caught.value.code == "LK1002"


class Named(nn.Module):
    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return inputs["x"] - inputs["y"]


class Collected(nn.Module):
    """Hands its inputs on by name, out of one tuple: the trace knows them all as ``inputs``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Named()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(**dict(zip("xy", inputs, strict=True)))


def test_inputs_of_one_name_are_told_apart() -> None:
    x, y = torch.randn(3), torch.randn(3)
    program = capture(torch.jit.trace(Collected().eval(), (x, y)), (x, y))
    names = [spec.name for spec in program.signature.inputs]
    assert len(set(names)) == 2
    assert_same_as_eager(program, [x.numpy(), y.numpy()])
