"""How filters are laid out for the kernels of convolutions; the element type stays, nothing is padded.

Layouts (row-major)::

    conv_taps_channels  [Cout, Cin/groups, kernel...] -> [Cout, kernel..., Cin/groups]: K is contiguous
    conv_taps_outputs   [Cout, 1, kernel...]          -> [kernel..., Cout]: neighbouring channels lie side by side

Of transposed convolutions::

    transposed_taps_channels  [Cin, Cout/groups, kernel...] -> [Cout, kernel..., Cin/groups], with ``groups``
    transposed_taps_outputs   [groups, Cout/groups, kernel...] -> [kernel..., Cout]: of groups of one input channel
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.targets.packing import Layout, Packing, register_layout

__all__ = ["INPUTS_TAPS_CHANNELS", "INPUTS_TAPS_OUTPUTS", "TAPS_CHANNELS", "TAPS_OUTPUTS"]

Array = np.ndarray[Any, np.dtype[Any]]


def _channels_shape(shape: Sequence[int], _: dict[str, int]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def _channels_apply(array: Array, _: dict[str, int]) -> Array:
    return np.moveaxis(array, 1, -1)


def _outputs_shape(shape: Sequence[int], _: dict[str, int]) -> tuple[int, ...]:
    return (*shape[2:], shape[0])


def _outputs_apply(array: Array, _: dict[str, int]) -> Array:
    return np.moveaxis(array[:, 0], 0, -1)


def _transposed_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    groups = parameters["groups"]
    return (groups * shape[1], *shape[2:], shape[0] // groups)


def _transposed_apply(array: Array, parameters: dict[str, int]) -> Array:
    groups = parameters["groups"]
    split = array.reshape(groups, array.shape[0] // groups, *array.shape[1:])
    return np.moveaxis(split, 1, -1).reshape(_transposed_shape(array.shape, parameters))


def _spread_shape(shape: Sequence[int], _: dict[str, int]) -> tuple[int, ...]:
    return (*shape[2:], shape[0] * shape[1])


def _spread_apply(array: Array, _: dict[str, int]) -> Array:
    return np.moveaxis(array.reshape(-1, *array.shape[2:]), 0, -1)


register_layout("conv_taps_channels", Layout(_channels_shape, _channels_apply))
register_layout("conv_taps_outputs", Layout(_outputs_shape, _outputs_apply))

register_layout("transposed_taps_channels", Layout(_transposed_shape, _transposed_apply))
register_layout("transposed_taps_outputs", Layout(_spread_shape, _spread_apply))

TAPS_CHANNELS = Packing.of("conv_taps_channels")
TAPS_OUTPUTS = Packing.of("conv_taps_outputs")
INPUTS_TAPS_CHANNELS = "transposed_taps_channels"
INPUTS_TAPS_OUTPUTS = Packing.of("transposed_taps_outputs")
