"""Parameters and buffers that were packed at compile time, and whether they still have the values they had.

How a change shows
    another tensor     in the place of the parameter, or other memory behind it (``p.data = ...``)
    version counter    every in-place op of PyTorch raises it: ``copy_``, ``load_state_dict``, an optimizer's step
    samples            writes through ``p.data``, ``p.detach().numpy()`` or a file's memory raise no counter. So some
                       elements, all of a small tensor, are compared at each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLES = 64
"""Elements that are compared; a tensor of no more is compared wholly."""


@dataclass(frozen=True)
class _Frozen:
    node: fx.Node
    tensor: torch.Tensor
    storage: Any  # keeps the address from being given to another tensor
    address: int
    version: int
    view: np.ndarray[Any, Any]
    sample: bytes


class FrozenInputs:
    """What was packed."""

    def __init__(self, tensors: Mapping[fx.Node, torch.Tensor]) -> None:
        self._frozen = [_freeze(node, tensor) for node, tensor in tensors.items()]

    def changed(self, values: Mapping[fx.Node, Any]) -> list[fx.Node]:
        """Returns the inputs that have other values now."""
        return [
            frozen.node
            for frozen in self._frozen
            if (value := values[frozen.node]).data_ptr() != frozen.address
            or value._version != frozen.version
            or (value is not frozen.tensor and not _is_same_view(value, frozen.tensor))
            or frozen.view.tobytes() != frozen.sample
        ]


def can_be_frozen(value: Any) -> bool:
    """Whether changes of a tensor would show: it is a plain one, on the CPU, with a version counter."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_inference()
        and not (value.is_neg() or value.is_conj() or value.dtype.is_complex)
    )


def _freeze(node: fx.Node, tensor: torch.Tensor) -> _Frozen:
    view = _samples(tensor.detach())
    version = tensor._version  # pyright: ignore[reportPrivateUsage]
    return _Frozen(node, tensor, tensor.untyped_storage(), tensor.data_ptr(), version, view, view.tobytes())


def _samples(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy view of some elements, spread over the tensor, as integers of their size."""
    bits = tensor.view(_WORDS[tensor.element_size()])
    while bits.numel() > SAMPLES:
        axis = max(range(bits.dim()), key=lambda dim: bits.shape[dim])
        step = min(bits.shape[axis], -(-bits.numel() // SAMPLES))
        bits = bits[(slice(None),) * axis + (slice(None, None, step),)]
    return bits.numpy()


def _is_same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
