"""Conversions of torch-mlir that crash or never end are diagnostics, and common nodes pay for no worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn.functional import normalize

import lowerkit
from lowerkit import worker_process
from lowerkit.capture.onnx import to_torch as onnx_to_torch
from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.importer import import_onnx
from lowerkit.capture.onnx.prepare import ready_graph
from lowerkit.dialect.context import new_context
from lowerkit.errors import CaptureError, UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes import mlir_worker

CRASHES = "os.abort()"
NEVER_ENDS = "while True: pass"


def model_of(
    nodes: list[onnx.NodeProto],
    element: int = TensorProto.FLOAT,
    constants: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    """Returns a model of [2, 3] values from ``x`` to ``y``."""
    inputs, outputs = ([helper.make_tensor_value_info(name, element, [2, 3])] for name in "xy")
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, happening: str, condition: str) -> None:
    """Makes workers in which ``happening`` takes the place of conversions of a text for which ``condition`` holds."""
    stand_in = folder / "worker.py"
    stand_in.write_text(
        "import os\n"
        "from lowerkit.passes import mlir_worker\n"
        "from lowerkit.worker_process import main\n"
        "original = mlir_worker.run_here\n"
        "def run_here(module, pipelines):\n"
        "    text = str(module)\n"
        f"    if {condition}:\n"
        f"        {happening}\n"
        "    original(module, pipelines)\n"
        "mlir_worker.run_here = run_here\n"
        "main()\n"
    )
    worker_process.end_idle_workers()
    monkeypatch.setattr(worker_process, "WORKER_COMMAND", (str(stand_in),))


@pytest.fixture(autouse=True)
def no_planted_worker_stays() -> Iterator[None]:
    """A worker in which something was planted serves no other test."""
    yield
    worker_process.end_idle_workers()


def test_normalize_in_bfloat16_is_right(tmp_path: Path) -> None:
    """The conversion of ReduceL2 aborts on bfloat16: it is expanded by what the standard defines it by."""
    nodes = [
        helper.make_node("ReduceL2", ["x", "axes"], ["norm"], "reduce", keepdims=1),
        helper.make_node("Clip", ["norm", "least"], ["clipped"], "clip"),
        helper.make_node("Div", ["x", "clipped"], ["y"], "divide"),
    ]
    least = helper.make_tensor("least", TensorProto.BFLOAT16, [], [1e-12])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    path = tmp_path / "normalize.onnx"
    onnx.save(model_of(nodes, TensorProto.BFLOAT16, [least, axes]), path)
    values = torch.tensor([[3.0, -4.0, 0.5], [0.0, 0.0, 0.0]], dtype=torch.bfloat16)
    result = lowerkit.compile(path)(values)
    found = torch.from_numpy(np.asarray(result).astype(np.float32))
    assert torch.equal(found, normalize(values, dim=1).float())


@pytest.mark.parametrize(
    ("happening", "reason"),
    [(CRASHES, "signal SIGABRT"), (NEVER_ENDS, r"more than 1 s of processor time were used")],
    ids=["crashes", "never-ends"],
)
def test_a_node_whose_conversion_does_not_come_back_is_named(
    happening: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, tmp_path, happening, "'onnx.Round' in text")
    monkeypatch.setattr(mlir_worker, "MODULE_SECONDS", 1.0)
    monkeypatch.setattr(onnx_to_torch, "OP_SECONDS", 1.0)
    nodes = [helper.make_node("Ceil", ["x"], ["a"], "fine"), helper.make_node("Round", ["a"], ["y"], "guilty")]
    with pytest.raises(UnsupportedError) as caught:
        capture_onnx(model_of(nodes))
    assert caught.value.code == "LK4001"
    (detail,) = caught.value.details
    assert detail.startswith("Round (node 'guilty') on (vtensor<[2,3],f32>)")
    assert re.search(rf"its conversion does not end or crashes \(.*{reason}", detail)


def test_a_crash_for_which_no_node_alone_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tmp_path, CRASHES, "'onnx.Round' in text and 'onnx.Ceil' in text")
    nodes = [helper.make_node("Ceil", ["x"], ["a"]), helper.make_node("Round", ["a"], ["y"])]
    with pytest.raises(CaptureError, match="SIGABRT") as caught:
        capture_onnx(model_of(nodes))
    assert caught.value.code == "LK2001"
    assert "a bug of lowerkit" in (caught.value.hint or "")


def test_a_worker_converts_as_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, locations and all."""
    nodes = [
        helper.make_node("Constant", [], ["shape"], "shape", value_ints=[3, 2]),
        helper.make_node("Reshape", ["x", "shape"], ["a"], "encoder/reshape"),
        helper.make_node("MatMul", ["x", "a"], ["b"], "encoder/product"),
        helper.make_node("MatMul", ["b", "x"], ["c"], "decoder/product"),
        helper.make_node("Softmax", ["c"], ["y"], "decoder/softmax"),
    ]
    texts: list[str] = []
    for answer in (False, True):

        def well_known(node: ir.Operation, answer: bool = answer) -> bool:
            del node
            return answer

        monkeypatch.setattr(onnx_to_torch, "is_well_known", well_known)
        module = import_onnx(ready_graph(model_of(nodes), None), new_context())
        texts.append(module.operation.get_asm(enable_debug_info=True))
    assert "decoder" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("element", "op_type", "expected"),
    [
        (TensorProto.FLOAT, "Relu", True),
        (TensorProto.BFLOAT16, "Relu", False),
        (TensorProto.FLOAT16, "Relu", False),
        (TensorProto.FLOAT, "Round", False),
    ],
)
def test_what_is_well_known_stays_in_this_process(
    element: int, op_type: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []
    monkeypatch.setattr(onnx_to_torch, "run_here", lambda *_: called.append(True))
    monkeypatch.setattr(onnx_to_torch, "run_in_worker", lambda *_: called.append(False))
    with pytest.raises(UnsupportedError):  # nothing was converted
        import_onnx(
            ready_graph(model_of([helper.make_node(op_type, ["x"], ["y"])], element), None, None), new_context()
        )
    assert called == [expected]
