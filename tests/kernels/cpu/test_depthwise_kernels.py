"""Depthwise kernels against eager: MobileNetV2's shapes in small, borders, strides, dimensions, dtypes."""

from __future__ import annotations

import pytest

from lowerkit.targets.cpu.conv.depthwise import DepthwiseFamily, Run, split_line
from lowerkit.targets.cpu.conv.window import Window
from tests.kernels.cpu.test_conv_kernels import Case
from tests.support.kernels import ENDS


def depthwise(shape: tuple[int, ...], kernel: int | tuple[int, ...], **options: object) -> Case:
    return Case(shape, shape[-1], kernel, groups=shape[-1], **options)  # type: ignore[arg-type]


CASES = {
    "mobile": depthwise((1, 28, 28, 32), 3, padding=1, activation="relu6"),
    "mobile_strided": depthwise((1, 28, 28, 96), 3, stride=2, padding=1, activation="relu6"),
    "small_image": depthwise((2, 7, 7, 48), 3, padding=1, residual=True, ranges=3),
    "ragged_channels": depthwise((1, 12, 40, 21), 3, padding=1),
    "no_padding": depthwise((1, 12, 40, 16), 3),
    "wide_kernel": depthwise((1, 12, 40, 16), (5, 7), padding=(2, 3), activation="hardswish"),
    "dilated": depthwise((1, 20, 33, 16), 3, padding=2, dilation=2),
    "image_inside_the_kernel": depthwise((1, 2, 2, 16), 5, padding=2),
    "padding_beyond_the_image": depthwise((1, 3, 3, 16), 3, padding=3),
    "one_dimension": depthwise((2, 50, 24), 4, stride=2, padding=1),
    "three_dimensions": depthwise((1, 5, 6, 7, 16), 3, stride=(2, 1, 1), padding=1),
    "heavy_epilogue": depthwise((1, 14, 30, 32), 3, padding=1, activation="silu"),
    "dynamic_batch": depthwise((3, 9, 9, 16), 3, padding=1, dynamic_batch=True, residual=True),
    **{t: depthwise((1, 14, 14, 40), 3, padding=1, element=t) for t in ("f16", "bf16", "f64")},
}


@pytest.mark.parametrize("level", ENDS)
@pytest.mark.parametrize("name", CASES)
def test_error_is_what_the_roundings_of_its_sums_allow(name: str, level: str) -> None:
    CASES[name].check(DepthwiseFamily(), level)


@pytest.mark.parametrize(
    ("window", "most", "runs"),
    [
        (Window(112, 112, 3, 1, 1, 1), 12, [Run(0, 12, 1), Run(12, 12, 1), Run(24, 11, 7), Run(101, 11, 1)]),
        (Window(7, 7, 3, 1, 1, 1), 12, [Run(0, 7, 1)]),
        (Window(20, 18, 3, 1, 0, 1), 6, [Run(0, 6, 3)]),
    ],
    ids=["borders_apart", "one_run", "no_borders"],
)
def test_lines_are_split_at_their_borders(window: Window, most: int, runs: list[Run]) -> None:
    assert split_line(window, most) == runs
