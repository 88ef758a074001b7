"""Buffers that a model changes: their values at capture, and eager runs that start from those and say where they end.

Vocabulary
    state  a buffer that ``forward`` changes.
    live   the tensor that eager itself reads and writes; the user's own, so every run here leaves it as it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lowerkit.capture.dtypes import to_numpy
from lowerkit.capture.fx_functional import FunctionalProgram
from lowerkit.capture.program import Array
from lowerkit.runtimes.manifest import TensorSpec


def freeze_states(program: FunctionalProgram) -> None:
    """Gives ``program`` copies of its states: later runs of the user's module must not change where they start."""
    for name in program.graph_signature.buffers_to_mutate.values():
        tensors = program.state_dict if name in program.state_dict else program.constants
        changed = {**tensors, name: tensors[name].detach().clone()}
        if tensors is program.state_dict:
            program.state_dict = changed
        else:
            program.constants = changed


def live_states(states: Sequence[TensorSpec], module: Any, tensors: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns the live tensor of each state: the module's buffer of that name, else the exported program's tensor."""
    buffers = dict(module.named_buffers()) if module is not None else {}
    return [buffers[spec.name] if spec.name in buffers else tensors[spec.name] for spec in states]


def stateful_eager(call: Callable[..., list[Array]], live: Sequence[torch.Tensor]) -> Callable[..., list[Array]]:
    """Returns ``call`` started from the values that ``live`` has now, each time; it returns the final states as well.

    The user's tensors hold afterwards what they held before the run.
    """
    if not live:
        return call
    initial = [tensor.detach().clone() for tensor in live]

    def run(*arrays: Array) -> list[Array]:
        kept = [tensor.detach().clone() for tensor in live]
        _assign(live, initial)
        try:
            outputs = call(*arrays)
            return [*outputs, *(np.array(to_numpy(tensor.detach())) for tensor in live)]
        finally:
            _assign(live, kept)

    return run


def _assign(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
