"""The six architectures of the benchmark, tiny, by every way in."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.program.locations import origin_of
from lowerkit.program.program import Program
from tests.support.models import benchmark_models
from tests.unit.capture.running import assert_same_as_eager, op_counts, operations

models = benchmark_models()
WAYS = ("export", "traced", "onnx")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def captured(name: str, way: str, folder: Path) -> Program:
    module, inputs = models.tiny(name)
    array = inputs[0].numpy()
    match way:
        case "export":
            return capture(module, inputs)
        case "traced":
            torch.jit.save(torch.jit.trace(module, inputs, check_trace=False), str(folder / "model.pt"))
            return capture_path(folder / "model.pt", example_inputs=[array])
        case _:
            torch.onnx.export(module, inputs, str(folder / "model.onnx"), dynamo=True, verbose=False)
            return capture_path(folder / "model.onnx", example_inputs=[array])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", models.NAMES)
def test_every_way_in(name: str, way: str, tmp_path: Path) -> None:
    program = captured(name, way, tmp_path)
    # What torch-mlir knows no op for comes as this one; the look-up of tokens is checked by one of our own.
    foreign = [str(op.attributes["name"]) for op in operations(program) if op.name == "torch.operator"]
    looks_up = name in ("bert_base", "gpt2", "llama")
    assert foreign == ['"torch.lowerkit.checked_indices"'] * len(foreign)
    assert bool(foreign) == looks_up
    assert program.signature.dims == []
    for operation in operations(program):
        assert not [result for result in operation.results if "?" in str(result.type)], operation.name
    if way != "onnx":
        computing = [op for op in operations(program) if op.name.startswith("torch.aten.")]
        assert all(origin_of(op.location).source_line for op in computing)
        assert any(origin_of(op.location).module for op in computing)
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs, tolerance=1e-4)


@pytest.mark.parametrize("name", models.NAMES)
def test_outputs_depend_on_inputs(name: str) -> None:
    module, first = models.tiny(name)
    second = models.example_inputs(name, tiny=True, seed=models.SEED + 1)
    assert models.require_input_dependence(module, first, second) >= 0.2
    again, _ = models.tiny(name)
    assert torch.equal(module(*first), again(*first))


def test_a_model_that_ignores_its_input_is_refused() -> None:
    ones = (torch.ones(2),)
    with pytest.raises(ValueError, match="0.2"):
        models.require_input_dependence(lambda x: x * 0 + 3, ones, (torch.zeros(2),))
    assert np.isfinite(models.input_dependence(lambda x: x + 1, ones, (torch.zeros(2),)))


def test_masks_and_rotary_tables_are_constants() -> None:
    module, inputs = models.tiny("llama")
    counts = op_counts(capture(module, inputs))
    assert not {"torch.aten.arange", "torch.aten.cos", "torch.aten.sin", "torch.aten.le.Tensor"} & set(counts)
    assert counts["torch.aten.scaled_dot_product_attention"] == 2
