"""The six architectures, small, by every way in and in both precisions, against eager by gate A."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.capture.load_model import capture_path
from lowerkit.parity.check import check_program
from lowerkit.parity.metrics import compare
from lowerkit.parity.report.report import Report
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.program import Program
from tests.support.models import benchmark_models, tiny_program

MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make(name: str, dtype: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    module, inputs = benchmark_models().tiny(name)
    wanted = DTYPES[dtype]
    return module.to(wanted), tuple(value.to(wanted) if value.is_floating_point() else value for value in inputs)


def require_pass(report: Report) -> None:
    failing = [row for row in [*report.ops, *report.outputs] if not row.verdict.passed]
    lines = [f"{row.name} {row.kind} {row.location}: {row.verdict.reason}" for row in failing]
    assert report.passed, "\n".join(lines)
    assert report.outputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_torch_export(name: str, dtype: str) -> None:
    report = check_program(tiny_program(name, DTYPES[dtype]))
    require_pass(report)
    assert len(report.ops) > 3, "per-op comparison found next to nothing to compare"


@pytest.mark.parametrize("form", ["torchscript", "onnx", "onnx in bf16"])
@pytest.mark.parametrize(
    "name",
    [*MODELS[:3], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("vit_b16", "gpt2")), "llama"],
)
def test_files(name: str, form: str, tmp_path: Path) -> None:
    """What a model becomes in a file is captured as well as the module in memory."""
    if form == "torchscript":
        check_torchscript_trace(name, tmp_path)
    else:
        check_onnx_export(name, "bf16" if form == "onnx in bf16" else "f32", tmp_path)


def check_torchscript_trace(name: str, tmp_path: Path) -> None:
    module, inputs = make(name, "f32")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, inputs, check_trace=False)
    path = tmp_path / "model.pt"
    torch.jit.save(traced, str(path))
    require_pass(check_program(capture_path(str(path), input_specs(path, inputs), [])))


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No warnings; and logging is on again for the tests that follow in this process."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def check_onnx_export(name: str, dtype: str, tmp_path: Path) -> None:
    module, inputs = make(name, dtype)
    path = tmp_path / "model.onnx"
    with quiet(), torch.no_grad():
        # Optimizing, PyTorch folds batch norms into float32 filters between bfloat16 values: an invalid model.
        normalized = any(isinstance(inner, torch.nn.BatchNorm2d) for inner in module.modules())
        plain = dtype == "bf16" and normalized
        torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False, opset_version=22, optimize=not plain)
    program = capture_path(str(path), input_specs(path, inputs), [])
    require_pass(check_program(program))
    assert_near_module(program, module, inputs, dtype)


def input_specs(path: Path, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    """Saves the input as .npy and returns its --input text; every model here has one input."""
    assert len(inputs) == 1
    name = "pixel_values" if inputs[0].is_floating_point() else "input_ids"
    if inputs[0].dtype == torch.bfloat16:  # .npy has no bfloat16
        return [f"{name}:{'x'.join(map(str, inputs[0].shape))}:bf16"]
    np.save(path.with_suffix(".npy"), inputs[0].numpy())
    return [f"{name}=@{path.with_suffix('.npy')}"]


def assert_near_module(program: Program, module: torch.nn.Module, inputs: tuple[Any, ...], dtype: str) -> None:
    """The file's eager (ONNX Runtime, in bf16 rounded after each node) is itself near the module it came from."""
    assert program.eager is not None
    with torch.no_grad():
        expected = to_numpy(module(*inputs))
    actual = program.eager(*[to_numpy(value) for value in inputs])[0]
    assert actual.dtype == expected.dtype
    assert compare(actual, expected).sqnr_db > {"f32": 100, "bf16": 25}[dtype]
