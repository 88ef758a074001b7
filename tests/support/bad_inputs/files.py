"""Sound models, small, to be damaged: an export, a TorchScript file, an ONNX file, an artifact."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

INPUT = "input:2x8:f32"


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()


@cache
def exported() -> bytes:
    file = io.BytesIO()
    torch.export.save(torch.export.export(module(), (torch.randn(2, 8),)), file)
    return file.getvalue()


@cache
def scripted() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module(), torch.randn(2, 8)), file)
    return file.getvalue()


@cache
def artifact() -> bytes:
    import tempfile

    import lowerkit

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.lk"
        lowerkit.compile(module(), (torch.randn(2, 8),)).save(path)
        return path.read_bytes()


def onnx_model(
    nodes: list[onnx.NodeProto] | None = None,
    inputs: dict[str, list[int]] | None = None,
    outputs: dict[str, list[int]] | None = None,
    weights: list[TensorProto] | None = None,
    *,
    opset: int = 21,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    """A matrix product with a weight, unless told otherwise; nothing is checked."""
    if nodes is None:
        nodes = [helper.make_node("MatMul", ["input", "w"], ["y"])]
        weights = [numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), "w")]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (inputs or {"input": [2, 8]}).items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (outputs or {"y": [2, 4]}).items()],
        weights or [],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def rezip(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Returns a zip of stored entries after ``change`` edited the table of its contents."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    change(entries)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def find(entries: dict[str, bytes], part: str) -> str:
    """Returns the entry whose name holds ``part``."""
    return next(name for name in entries if part in name)
