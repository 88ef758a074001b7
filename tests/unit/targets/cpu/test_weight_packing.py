"""Packed weights beside their definition, element by element; widths that are no multiple of a panel included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lowerkit.targets.cpu.gemm.weight_packing import Packing
from tests.support.suite.randomness import RANDOM


@pytest.mark.parametrize("shape", [(5, 7), (32, 33), (2, 9, 31), (2, 3, 64, 1), (1, 1), (16, 32)])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("panel", [1, 8, 32])
def test_matmul_panels(shape: tuple[int, ...], transposed: int, panel: int) -> None:
    weight = np.random.default_rng(3).standard_normal(shape, np.float32)
    packing = Packing.of("matmul_panels", transposed=transposed, panel=panel)
    packed = packing.apply(weight)
    seen = np.swapaxes(weight, -1, -2) if transposed else weight
    *outer, depth, width = seen.shape
    assert packed.shape == packing.packed_shape(shape) == (*outer, -(-width // panel), depth, panel)
    assert packed.flags.c_contiguous
    flat = np.moveaxis(packed, -2, -3).reshape(*outer, depth, -1)
    assert np.array_equal(flat[..., :width], seen)
    assert not flat[..., width:].any()


@pytest.mark.parametrize("shape", [(6, 3, 3, 3), (32, 1, 1, 1), (34, 4, 5), (8, 2, 3, 1, 2)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("panel", [1, 8, 32])
def test_conv_panels(shape: tuple[int, ...], groups: int, panel: int) -> None:
    weight = np.random.default_rng(4).standard_normal(shape, np.float32)
    packing = Packing.of("conv_panels", groups=groups, panel=panel)
    packed = packing.apply(weight)
    assert packed.shape == packing.packed_shape(shape)
    outputs, depth, *kernel = shape
    per_group = outputs // groups
    expected = np.zeros(packed.shape, np.float32)
    places = itertools.product(range(groups), range(per_group), range(depth), *map(range, kernel))
    for group, output, channel, *place in places:
        target = (group, output // panel, *place, channel, output % panel)
        expected[target] = weight[(group * per_group + output, channel, *place)]
    assert np.array_equal(packed, expected)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("panel", [1, 16, 48])
def test_matmul_quads(transposed: int, panel: int) -> None:
    weight = RANDOM.integers(-128, 128, (33, 12) if transposed else (12, 33)).astype(np.int8)
    packing = Packing.of("matmul_quads", transposed=transposed, panel=panel)
    packed = packing.apply(weight)
    seen = weight.T if transposed else weight
    assert packed.shape == packing.packed_shape(weight.shape)
    expected = np.zeros((packed.shape[0], 3, panel, 4), np.int8)
    for depth, column in np.ndindex(12, 33):
        expected[column // panel, depth // 4, column % panel, depth % 4] = seen[depth, column]
    assert np.array_equal(packed.reshape(expected.shape), expected)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("panel", [1, 16])
def test_conv_quads(groups: int, panel: int) -> None:
    weight = RANDOM.integers(-128, 128, (6, 8, 3, 2)).astype(np.int8)
    packing = Packing.of("conv_quads", groups=groups, panel=panel)
    packed = packing.apply(weight)
    per_group = 6 // groups
    assert packed.shape == packing.packed_shape(weight.shape)
    expected = np.zeros((groups, -(-per_group // panel), 3, 2, 2, panel, 4), np.int8)
    for output, channel, y, x in np.ndindex(6, 8, 3, 2):
        group, place = divmod(output, per_group)
        value = weight[output, channel, y, x]
        expected[group, place // panel, y, x, channel // 4, place % panel, channel % 4] = value
    assert np.array_equal(packed.reshape(expected.shape), expected)
