"""How filters are laid out for the kernels of convolutions; the element type stays, nothing is padded.

Layouts (row-major)::

    conv_taps_channels  [Cout, Cin/groups, kernel...] -> [Cout, kernel..., Cin/groups]: K is contiguous
    conv_taps_outputs   [Cout, 1, kernel...]          -> [kernel..., Cout]: neighbouring channels lie side by side
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.targets.packing import Layout, Packing, register_layout

__all__ = ["TAPS_CHANNELS", "TAPS_OUTPUTS"]

Array = np.ndarray[Any, np.dtype[Any]]


def _channels_shape(shape: Sequence[int], _: dict[str, int]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def _channels_apply(array: Array, _: dict[str, int]) -> Array:
    return np.moveaxis(array, 1, -1)


def _outputs_shape(shape: Sequence[int], _: dict[str, int]) -> tuple[int, ...]:
    return (*shape[2:], shape[0])


def _outputs_apply(array: Array, _: dict[str, int]) -> Array:
    return np.moveaxis(array[:, 0], 0, -1)


register_layout("conv_taps_channels", Layout(_channels_shape, _channels_apply))
register_layout("conv_taps_outputs", Layout(_outputs_shape, _outputs_apply))

TAPS_CHANNELS = Packing.of("conv_taps_channels")
TAPS_OUTPUTS = Packing.of("conv_taps_outputs")
