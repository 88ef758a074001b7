"""Gradients of pooling, resizing and padding: ops that are linear along each axis.

Such an op is a matrix along each axis, which is what the op itself gives for unit vectors: a constant. The gradient is
the product with the transposed matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

Along = Callable[[Tensor, int, int], Tensor]
"""The op on units, whose extents are 1 but along one axis; and that axis, and the extent of the output along it."""


def transposed_product(grad: Tensor, extents: Sequence[int], along: Along) -> Tensor:
    """Returns the gradient of the input, whose last extents are ``extents``."""
    spatial = len(extents)
    for axis, extent in enumerate(extents):
        place = grad.dim() - spatial + axis
        units = torch.eye(extent, dtype=grad.dtype, device=grad.device)
        shape = [1, extent, *(extent if other == axis else 1 for other in range(spatial))]
        matrix = along(units.reshape(shape), axis, int(grad.shape[place])).reshape(extent, grad.shape[place])
        grad = torch.matmul(grad.transpose(place, -1), matrix.t()).transpose(place, -1)
    return grad


def _on(axis: int, rank: int, number: int, otherwise: int) -> list[int]:
    return [number if other == axis else otherwise for other in range(rank)]


def average_pool_backward(forward: Any, rank: int) -> Callable[..., Tensor]:
    """Gradient of ``avg_pool2d`` and its kin."""

    def gradient(
        grad: Tensor,
        data: Tensor,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        window, padding = _each(window, rank), _each(padding, rank)
        steps = _each(stride, rank) if stride else window

        def along(units: Tensor, axis: int, _out: int) -> Tensor:
            settings = [
                _on(axis, rank, numbers[axis], other) for numbers, other in ((window, 1), (steps, 1), (padding, 0))
            ]
            return forward(units, *settings, ceil_mode, count_include_pad, None if divisor_override is None else 1)

        found = transposed_product(grad, data.shape[-rank:], along)
        return found if divisor_override is None else found / divisor_override

    return gradient


def adaptive_average_pool_backward(forward: Any, rank: int) -> Callable[..., Tensor]:
    """Gradient of ``_adaptive_avg_pool2d`` and its kin."""

    def gradient(grad: Tensor, data: Tensor) -> Tensor:
        return transposed_product(
            grad, data.shape[-rank:], lambda units, axis, out: forward(units, _on(axis, rank, out, 1))
        )

    return gradient


def resize_backward(forward: Any, rank: int) -> Callable[..., Tensor]:
    """Gradient of ``upsample_bilinear2d`` and its kin; those without ``align_corners`` too."""

    def gradient(grad: Tensor, _output_size: Sequence[int], input_size: Sequence[int], *settings: Any) -> Tensor:
        aligned = settings[: len(settings) - rank] if len(settings) > rank else settings[:1]
        scales = list(settings[len(aligned) :]) or [None] * rank
        if settings and not isinstance(settings[0], bool):
            aligned, scales = (), list(settings)

        def along(units: Tensor, axis: int, out: int) -> Tensor:
            factors = [scales[axis] if other == axis and axis < len(scales) else None for other in range(rank)]
            return forward(units, _on(axis, rank, out, 1), *aligned, *factors)

        return transposed_product(grad, list(input_size)[-rank:], along)

    return gradient


def pad_backward(forward: Any, rank: int) -> Callable[..., Tensor]:
    """Gradient of ``replication_pad2d`` and its kin."""

    def gradient(grad: Tensor, data: Tensor, padding: Sequence[int]) -> Tensor:
        def along(units: Tensor, axis: int, _out: int) -> Tensor:
            sides = [0, 0] * rank
            sides[2 * (rank - 1 - axis) : 2 * (rank - axis)] = padding[2 * (rank - 1 - axis) : 2 * (rank - axis)]
            return forward(units, sides)

        return transposed_product(grad, data.shape[-rank:], along)

    return gradient


def max_pool_backward(rank: int) -> Callable[..., Tensor]:
    """Gradient of a pooling that says where it found its maxima: the indices are the last argument."""

    def gradient(grad: Tensor, data: Tensor, *settings: Any, indices: Tensor | None = None) -> Tensor:
        places = settings[-1] if indices is None else indices
        planes, size = math.prod(data.shape[:-rank]), math.prod(data.shape[-rank:])
        zeros = torch.zeros([planes, size], dtype=grad.dtype, device=grad.device)
        rows = torch.arange(planes, device=grad.device).unsqueeze(1)
        found = aten.index_put(zeros, [rows, places.reshape(planes, -1)], grad.reshape(planes, -1), True)
        return found.reshape(data.shape)

    return gradient


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)
