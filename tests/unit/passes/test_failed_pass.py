"""A pass that fails names the op, the user's line and a file of its own that repeats the failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.errors import LowerkitError, PassError, VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.pipeline import PipelineOptions, run_passes
from lowerkit.program.program import Program
from lowerkit.reproducers import KEPT, default_folder, file_name, write_reproducer

HERE = Path(__file__).name


class Sine(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * self.factor  # the line to name


LINE = next(
    n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# the line to name")
)


def sine_of(module: ir.Module) -> ir.Operation:
    (main,) = module.body.operations
    return next(op.operation for op in main.regions[0].blocks[0].operations if op.operation.name == "torch.aten.sin")


@dataclass(frozen=True)
class Raising(Pass):
    name: ClassVar[str] = "raising"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        op = sine_of(module)
        raise KeyError(op.name)


@dataclass(frozen=True)
class Breaking(Pass):
    name: ClassVar[str] = "breaking"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        op = sine_of(module)
        with ir.InsertionPoint(op), op.location:
            kind = ir.RankedTensorType.get([2, 3], ir.F32Type.get())
            zero = ir.Operation.create("tensor.empty", results=[kind]).result
            other = ir.RankedTensorType.get([5], ir.F32Type.get())
            ir.Operation.create(
                "tensor.collapse_shape",
                results=[other],
                operands=[zero],
                attributes={"reassociation": ir.Attribute.parse("[[0, 1]]")},
            )
        return True


@dataclass(frozen=True)
class Failing(Pass):
    name: ClassVar[str] = "failing"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        op = sine_of(module)
        with op.location, ir.InsertionPoint(op):
            ir.Module.parse("func.func @f() -> i32 { return }")  # MLIR's own error, of a place of its own
        return False


def captured(factor: float = 1.0) -> Program:
    return capture(Sine(factor), (torch.ones(2, 3),))


def fail(one_pass: Pass, folder: Path | None, program: Program | None = None) -> LowerkitError:
    program = program or captured()
    with pytest.raises(LowerkitError) as caught:
        run_passes(program, [one_pass], PassContext(weights=program.weights), PipelineOptions(None, folder))
    return caught.value


@pytest.mark.parametrize(
    ("one_pass", "kind", "op"), [(Raising, PassError, "aten.sin"), (Breaking, VerifyError, "tensor")]
)
def test_the_op_and_the_line_are_named(
    one_pass: Callable[[], Pass], kind: type[LowerkitError], op: str, tmp_path: Path
) -> None:
    error = fail(one_pass(), tmp_path)
    assert isinstance(error, kind)
    assert error.op is not None
    assert error.op.startswith(op)
    assert "2x3" in error.op
    assert error.location is not None
    assert error.location.endswith(f"{HERE}:{LINE}")
    assert str(error) == error.render()


def test_an_error_of_mlir_is_a_failed_pass(tmp_path: Path) -> None:
    error = fail(Failing(), tmp_path)
    assert error.code == "LK3001"
    assert "\n" not in error.message


def test_each_model_has_its_own_reproducer(tmp_path: Path) -> None:
    for factor in (1.0, 2.0, 2.0):
        fail(Raising(), tmp_path, captured(factor))
    assert len(list(tmp_path.iterdir())) == 2


def test_the_reproducer_is_named_and_repeats_the_failure(tmp_path: Path) -> None:
    error = fail(Breaking(), tmp_path / "new" / "folder")
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert f"lowerkit opt {file} --passes 'breaking'" in (error.hint or "")
    program = captured()
    program.module = ir.Module.parse(file.read_text(), context=program.context)
    again = fail(Breaking(), tmp_path, program)
    assert (again.op, again.location) == (error.op, error.location)


def test_nothing_is_written_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    error = fail(Raising(), None)
    assert not list(here.iterdir())
    (file,) = default_folder().iterdir()
    assert str(file) in (error.hint or "")
    assert default_folder().is_relative_to(tmp_path)


def test_a_folder_that_cannot_be_written_is_no_second_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = fail(Raising(), tmp_path / "file")
    assert error.code == "LK3001"
    assert "could not be written" in (error.hint or "")


def test_the_default_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = [write_reproducer(file_name("kernel", str(number)), str(number), None) for number in range(KEPT + 5)]
    assert len(list(default_folder().iterdir())) == KEPT
    assert paths[-1].read_text() == str(KEPT + 4)
