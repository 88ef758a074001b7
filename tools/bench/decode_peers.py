"""ONNX Runtime and OpenVINO as peers of ``decode.py``: a language model with its past keys and values in and out.

The model is exported to ONNX with two symbolic dims, the tokens of a call and the tokens before it: the prompt is a
call with no past, each token a call with all of it. What a call gives as past is handed to the next as it is. OpenVINO
has states too, which would save it that hand-over: here both runtimes are used in the same way.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lowerkit.bench.peers import openvino_settings

Array = np.ndarray[Any, Any]
Step = Callable[[Array, list[Array]], list[Array]]
"""From tokens and the past to the logits of the last token, then the new past."""


class WithPast(nn.Module):
    """``forward(input_ids, past)``: logits of the last token [1, vocabulary], and the past with what was added."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return result.logits[:, -1], [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def export_with_past(model: Any, path: Path) -> list[tuple[int, ...]]:
    """Writes the ONNX model; returns the shapes of a past of no tokens, two for each layer."""
    tokens = torch.ones(1, 3, dtype=torch.int64)
    with torch.no_grad():
        layers = model(input_ids=tokens, use_cache=True).past_key_values.layers
    past = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    any_size = torch.export.Dim.DYNAMIC
    shapes = {"input_ids": {1: any_size}, "past": [{2: any_size} for _ in past]}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        exported = torch.onnx.export(
            WithPast(model).eval(), (tokens[:, :2], past), dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        logging.disable(logging.NOTSET)
    assert exported is not None, "an export with dynamo returns the program"
    exported.save(path, external_data=True)
    return [(tensor.shape[0], tensor.shape[1], 0, tensor.shape[3]) for tensor in past]


def onnxruntime_step(path: Path, threads: int) -> Step:
    """The model in ONNX Runtime's CPU provider."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def step(tokens: Array, past: list[Array]) -> list[Array]:
        return [np.asarray(value) for value in session.run(None, dict(zip(names, [tokens, *past], strict=True)))]

    return step


def openvino_step(path: Path, threads: int) -> Step:
    """The model in OpenVINO, in f32, tuned for latency."""
    import openvino

    core = openvino.Core()
    compiled: Any = core.compile_model(core.read_model(str(path)), "CPU", openvino_settings("f32", threads))
    request = compiled.create_infer_request()
    outputs = list(compiled.outputs)

    def step(tokens: Array, past: list[Array]) -> list[Array]:
        found = request.infer([tokens, *past])
        return [np.array(found[output]) for output in outputs]

    return step


STEPS: dict[str, Callable[[Path, int], Step]] = {"onnxruntime": onnxruntime_step, "openvino": openvino_step}
