"""Buffers that a model changes: their values at capture, and eager runs that start from those and say where they end.

Vocabulary
    state  a buffer that ``forward`` changes.
    live   the tensor that eager itself reads and writes; the user's own, so every run here leaves it as it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lowerkit.capture.torch_export.eager import EagerCall
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.functional_program import FunctionalProgram
from lowerkit.program.program import Array
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


class StatefulEager:
    """Eager that starts each run from the values that ``live`` had when this was made, and returns its final states.

    Attributes:
        call: the module on numpy arrays.
        live: the states, in the order of the signature. They hold afterwards what they held before a run.
    """

    def __init__(self, call: EagerCall, live: Sequence[torch.Tensor]) -> None:
        self.call = call
        self.live = live
        self._initial = [tensor.detach().clone() for tensor in live]

    def __call__(self, *arrays: Array) -> list[Array]:
        """Runs the module; returns its outputs, then the final states."""
        kept = [tensor.detach().clone() for tensor in self.live]
        _assign(self.live, self._initial)
        try:
            outputs = self.call(*arrays)
            return [*outputs, *(np.array(to_numpy(tensor.detach())) for tensor in self.live)]
        finally:
            _assign(self.live, kept)


@contextmanager
def states_kept(eager: Any) -> Generator[None]:
    """Within the block the states of a :class:`StatefulEager` may be changed; afterwards they are as before."""
    live: Sequence[torch.Tensor] = eager.live if isinstance(eager, StatefulEager) else ()
    kept = [tensor.detach().clone() for tensor in live]
    try:
        yield
    finally:
        _assign(live, kept)


def stateful_eager(call: EagerCall, live: Sequence[torch.Tensor]) -> Callable[..., list[Array]]:
    """Returns ``call`` as it is where there are no states, else as a :class:`StatefulEager`."""
    return StatefulEager(call, live) if live else call


def _assign(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
