"""Whether torch's own captures give what eager gives: what they change is not lowerkit's."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import torch
from onnx.reference import ReferenceEvaluator

from graph.function import Function
from graph.judge import run
from lowerkit.program.dtypes import to_numpy


def by_onnxruntime(model: Any, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What ONNX Runtime computes: the exporter rounds constants of float64 to float32."""
    import onnxruntime

    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {entry.name: to_numpy(value) for entry, value in zip(peer.get_inputs(), values, strict=True)}
    return [torch.from_numpy(np.asarray(array)) for array in peer.run(None, feeds)]


def by_reference(model: Any, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What ONNX's own evaluator computes, which rounds to the types of the model only."""
    names = [entry.name for entry in model.graph.input]
    feeds = {name: to_numpy(value) for name, value in zip(names, values, strict=True)}
    return [torch.from_numpy(np.asarray(array)) for array in ReferenceEvaluator(model).run(None, feeds)]


def exporter_differs(
    functions: list[Function], model: Any, module: torch.nn.Module, values: list[torch.Tensor]
) -> bool:
    """Whether other runtimes, too, give other numbers than eager for the exported model, or do not take it.

    ``logcumsumexp`` is exported with the greatest of the whole row, so that a NaN reaches the sums before it; ONNX
    Runtime's greatest leaves a NaN out where the row is short.
    """
    if any("logcumsumexp" in line for function in functions for line in function.lines):
        return True
    wanted = run(module, values)
    try:
        if not _alike(by_onnxruntime(model, values), wanted, 1e-4):
            return True
    except Exception:
        return True
    try:
        # Numbers of float64 are exported as float32, and some operators compute in it.
        doubles = [want.dtype == torch.float64 for want in wanted]
        found = by_reference(model, values)
        return not _alike(list(compress(found, doubles)), list(compress(wanted, doubles)), 1e-10)
    except Exception:
        return False


def _alike(found: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float) -> bool:
    return all(
        have.dtype == want.dtype
        and have.shape == want.shape
        and torch.allclose(have, want, tolerance, tolerance / 10, equal_nan=True)
        for have, want in zip(found, wanted, strict=True)
    )


def trace_differs(model: Any, module: torch.nn.Module, values: list[torch.Tensor]) -> bool:
    """Whether the trace itself gives other numbers than eager.

    To a trace a truth without dims that selects is the example's.
    """
    return any(
        have.shape != want.shape or not torch.allclose(have.double(), want.double(), 1e-4, 1e-5, equal_nan=True)
        for have, want in zip(run(model, values), run(module, values), strict=True)
    )
