"""How weight bytes are laid out at compile time, so that a kernel reads them in the order in which it multiplies.

Vocabulary
    panel: as many output channels as one register tile is wide; the innermost dimension of every GEMM layout.
    group: one of the independent channel groups of a convolution.

Layouts (row-major, edges padded with zeros)::

    matmul_panels       [..., K, N] or [..., N, K]       -> [..., panels, K, panel]
    conv_panels         [Cout, Cin/groups, kernel...]    -> [groups, panels, kernel..., Cin/groups, panel]
    matmul_quads        as matmul_panels and conv_panels, of elements of four bytes that follow each other along K or
    conv_quads          Cin/groups: panel has four times its width
    matmul_pairs        likewise, of elements of two 16-bit numbers: panel has twice its width, and an odd K or Cin a
    conv_pairs          zero behind it
    depthwise_channels  [C, 1, kernel...]                -> [kernel..., C]
    matmul_tiles        [..., K, N] or [..., N, K]       -> [..., panels, K/32, 2, 16, 16, 2]: AMX tiles of 16 pairs
    conv_tiles          [Cout, Cin/groups, kernel...]       along K x 16 columns, two beside each other per panel

"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.targets.cpu.gemm.arithmetic import Arithmetic
from lowerkit.targets.packing import Layout, Packing, register_layout

__all__ = ["Packing", "panel_layout"]  # who imports it from here has these layouts registered

Array = np.ndarray[Any, np.dtype[Any]]


def _pad_last(array: Array, multiple: int) -> Array:
    """Zeros behind the last dimension up to a multiple."""
    rest = -array.shape[-1] % multiple
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, rest)]) if rest else array


def _matmul_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    depth, width = (shape[-1], shape[-2]) if parameters["transposed"] else (shape[-2], shape[-1])
    panel = parameters["panel"]
    return (*shape[:-2], -(-width // panel), depth, panel)


def _matmul_apply(array: Array, parameters: dict[str, int]) -> Array:
    if parameters["transposed"]:
        array = np.swapaxes(array, -1, -2)
    return _in_panels(array, parameters["panel"], array.ndim - 2)


def _in_panels(array: Array, panel: int, axis: int) -> Array:
    """The last dimension in panels, their number as dimension ``axis``; zeros behind, where it is no multiple.

    Only the last panel is padded: padding the array would copy it once more, transposed.
    """
    *outer, width = array.shape
    whole = width // panel
    panels = np.moveaxis(array[..., : whole * panel].reshape(*outer, whole, panel), -2, axis)
    if whole * panel == width:
        return panels
    shape = [*panels.shape]
    shape[axis] += 1
    padded = np.empty(shape, array.dtype)  # of huge pages where it is large, which zeros() is not
    before = (slice(None),) * axis
    padded[*before, :whole] = panels
    padded[*before, whole, ..., : width - whole * panel] = array[..., whole * panel :]
    padded[*before, whole, ..., width - whole * panel :] = 0
    return padded


def _conv_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    outputs, depth, *kernel = shape
    groups, panel = parameters["groups"], parameters["panel"]
    return (groups, -(-(outputs // groups) // panel), *kernel, depth, panel)


def _conv_apply(array: Array, parameters: dict[str, int]) -> Array:
    groups, panel = parameters["groups"], parameters["panel"]
    outputs, depth, *kernel = array.shape
    # [groups, outputs, depth, kernel...] -> [groups, kernel..., depth, outputs]
    grouped = array.reshape(groups, outputs // groups, depth, *kernel)
    order = (0, *range(3, 3 + len(kernel)), 2, 1)
    return _in_panels(grouped.transpose(order), panel, 1)


def _depthwise_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    return (*shape[2:], shape[0])


def _depthwise_apply(array: Array, parameters: dict[str, int]) -> Array:
    return np.moveaxis(array[:, 0], 0, -1)


_TILE_DEPTH, _TILE_COLUMNS = 32, 16


def _tiles_of(matrix: Array) -> Array:
    """[..., K, N] as AMX tiles: pairs along K lie beside each other, 16 columns a tile row, two tiles a panel."""
    padded = _pad_last(matrix, 2 * _TILE_COLUMNS)
    *batch, depth, columns = padded.shape
    split = padded.reshape(*batch, depth // _TILE_DEPTH, 16, 2, columns // 32, 2, _TILE_COLUMNS)
    rank = len(batch)
    # [steps, pair rows, pair, panels, halves, columns] -> [panels, steps, halves, pair rows, columns, pair]
    order = [rank + axis for axis in (3, 0, 4, 1, 5, 2)]
    return split.transpose(*range(rank), *order)


def _matmul_tiles_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    depth, width = (shape[-1], shape[-2]) if parameters["transposed"] else (shape[-2], shape[-1])
    return (*shape[:-2], -(-width // 32), depth // _TILE_DEPTH, 2, 16, _TILE_COLUMNS, 2)


def _matmul_tiles_apply(array: Array, parameters: dict[str, int]) -> Array:
    return _tiles_of(np.swapaxes(array, -1, -2) if parameters["transposed"] else array)


def _conv_tiles_shape(shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
    outputs, depth, *kernel = shape
    groups = parameters["groups"]
    steps = math.prod(kernel) * depth // _TILE_DEPTH
    return (groups, -(-(outputs // groups) // 32), steps, 2, 16, _TILE_COLUMNS, 2)


def _conv_tiles_apply(array: Array, parameters: dict[str, int]) -> Array:
    groups = parameters["groups"]
    outputs, depth, *kernel = array.shape
    grouped = array.reshape(groups, outputs // groups, depth, *kernel)
    order = (0, *range(3, 3 + len(kernel)), 2, 1)
    return _tiles_of(grouped.transpose(order).reshape(groups, -1, outputs // groups))


@dataclass(frozen=True)
class _Elements:
    """Layouts in panels of elements of 32 bits, each of ``count`` numbers that follow each other along K or Cin."""

    count: int

    def _whole(self, array: Array) -> Array:
        """Numbers of the last dimension as elements; zeros fill the last one."""
        padded = np.ascontiguousarray(_pad_last(array, self.count))
        return padded.view(np.int32)

    def matmul_shape(self, shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
        """Packed shape of [..., K, N] or [..., N, K]."""
        depth, width = (shape[-1], shape[-2]) if parameters["transposed"] else (shape[-2], shape[-1])
        panel = parameters["panel"]
        return (*shape[:-2], -(-width // panel), -(-depth // self.count), self.count * panel)

    def matmul_apply(self, array: Array, parameters: dict[str, int]) -> Array:
        """Packs [..., K, N] or [..., N, K]."""
        rows = array if parameters["transposed"] else np.swapaxes(array, -1, -2)
        packed = _matmul_apply(self._whole(rows), {**parameters, "transposed": 1})
        return np.ascontiguousarray(packed).view(array.dtype)

    def conv_shape(self, shape: Sequence[int], parameters: dict[str, int]) -> tuple[int, ...]:
        """Packed shape of [Cout, Cin/groups, kernel...]."""
        outputs, depth, *kernel = shape
        groups, panel = parameters["groups"], parameters["panel"]
        return (groups, -(-(outputs // groups) // panel), *kernel, -(-depth // self.count), self.count * panel)

    def conv_apply(self, array: Array, parameters: dict[str, int]) -> Array:
        """Packs [Cout, Cin/groups, kernel...]."""
        elements = np.moveaxis(self._whole(np.moveaxis(array, 1, -1)), -1, 1)
        return np.ascontiguousarray(_conv_apply(elements, parameters)).view(array.dtype)


def panel_layout(arithmetic: Arithmetic) -> str:
    """Returns what the layouts in panels of these elements are called behind ``matmul_`` and ``conv_``."""
    return {1: "panels", 2: "pairs", 4: "quads"}[arithmetic.numbers]


for _name, _elements in (("pairs", _Elements(2)), ("quads", _Elements(4))):
    register_layout(f"matmul_{_name}", Layout(_elements.matmul_shape, _elements.matmul_apply))
    register_layout(f"conv_{_name}", Layout(_elements.conv_shape, _elements.conv_apply))
register_layout("matmul_tiles", Layout(_matmul_tiles_shape, _matmul_tiles_apply))
register_layout("conv_tiles", Layout(_conv_tiles_shape, _conv_tiles_apply))
register_layout("matmul_panels", Layout(_matmul_shape, _matmul_apply, lambda given: given["transposed"] == 1))
register_layout("conv_panels", Layout(_conv_shape, _conv_apply))
register_layout("depthwise_channels", Layout(_depthwise_shape, _depthwise_apply))
