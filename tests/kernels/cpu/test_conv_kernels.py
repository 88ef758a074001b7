"""Convolution kernels against eager: ResNet's shapes in small, odd windows, groups, dimensions, dtypes, epilogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lowerkit.targets.cpu.conv.conv import ConvFamily
from lowerkit.targets.cpu.conv.depthwise import DepthwiseFamily
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.plan import Refusal
from tests.support.kernels import (
    LEVELS,
    Epilogue,
    Side,
    apply_epilogue,
    at_levels,
    on_tiles,
    plan_region,
    random_array,
    region_text,
    require_near,
    run_plan,
    sums_of,
    tensor,
    to_torch,
)

CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: torch.nn.functional.conv1d,
    2: torch.nn.functional.conv2d,
    3: torch.nn.functional.conv3d,
}


@dataclass(frozen=True)
class Case:
    """``shape`` is [N, spatial..., channels]; windows are given per dimension or once for all."""

    shape: tuple[int, ...]
    outputs: int
    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    element: str = "f32"
    bias: bool = True
    residual: bool = False
    activation: str | None = "relu"
    dynamic_batch: bool = False
    ranges: int = 1

    def spread(self, value: int | tuple[int, ...]) -> tuple[int, ...]:
        return (value,) * (len(self.shape) - 2) if isinstance(value, int) else value

    @property
    def filter(self) -> tuple[int, ...]:
        return (self.outputs, self.shape[-1] // self.groups, *self.spread(self.kernel))

    @property
    def result(self) -> tuple[int, ...]:
        windows = (self.spread(value) for value in (self.kernel, self.stride, self.padding, self.dilation))
        spatial = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(self.shape[1:-1], *windows, strict=True)
        ]
        return (self.shape[0], *spatial, self.outputs)

    @property
    def epilogue(self) -> Epilogue:
        rank = len(self.shape)
        sides = [Side("addf", (rank - 1,), (self.outputs,), weight=True)] if self.bias else []
        sides += [Side("addf", tuple(range(rank)), self.result)] if self.residual else []
        return Epilogue(tuple(sides), self.activation)

    def text(self) -> str:
        dynamic = (0,) if self.dynamic_batch else ()
        padding = [p for pad in self.spread(self.padding) for p in (pad, pad)]
        anchor = (
            f'"lk.conv"(%arg0, %arg1) {{channels_last = true, strides = {array(self.spread(self.stride))}, '
            f"padding = {array(padding)}, dilation = {array(self.spread(self.dilation))}, "
            f"groups = {self.groups} : i64, accumulate = {'f64' if self.element == 'f64' else 'f32'}}}"
        )
        operands = [tensor(self.shape, self.element, dynamic), tensor(self.filter, self.element)]
        return region_text(anchor, operands, self.result, self.element, self.epilogue, dynamic)

    def check(self, family: KernelFamily, level: str) -> None:
        generator = np.random.default_rng(0)
        arrays = [random_array(generator, shape, self.element) for shape in (self.shape, self.filter)]
        sides = [random_array(generator, side.shape, self.element) for side in self.epilogue.sides]
        names = ["", "w", *("s" if side.weight else "" for side in self.epilogue.sides)]
        plan = plan_region(family, self.text(), "conv", names, level)
        assert not isinstance(plan, Refusal), plan.reason
        assert 1 in plan.packings
        dims = [self.shape[0]] * (2 + self.residual) if self.dynamic_batch else []
        (ours,) = run_plan(plan, [*arrays, *sides], [(self.result, self.element)], level, dims, self.ranges)

        def convolve(image: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
            value = CONVOLUTIONS[len(self.shape) - 2](
                image.movedim(-1, 1), filters, stride=self.spread(self.stride),
                padding=self.spread(self.padding), dilation=self.spread(self.dilation), groups=self.groups,
            )  # fmt: skip
            return value.movedim(1, -1)

        image, filters = (to_torch(value).double() for value in arrays)
        spread = [to_torch(side).double() for side in sides]
        exact = apply_epilogue(convolve(image, filters), self.epilogue, spread)
        length = int(np.prod(self.filter[1:]))
        require_near(
            ours,
            exact,
            self.element,
            self.epilogue,
            sums_of(convolve(image**2, filters**2), length, self.epilogue, spread),
        )


def array(values: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>"


CASES = {
    "stem": Case((1, 30, 30, 3), 64, 7, stride=2, padding=3),
    "pointwise": Case((2, 9, 9, 32), 48, 1, residual=True),
    "pointwise_strided": Case((1, 14, 14, 1024), 32, 1, stride=2),
    "pointwise_padded": Case((1, 6, 7, 8), 16, 1, padding=1),
    "three_by_three": Case((2, 14, 14, 32), 64, 3, padding=1, ranges=3),
    "three_by_three_strided": Case((1, 15, 15, 32), 40, 3, stride=2, padding=1, residual=True),
    "short_lines": Case((1, 7, 7, 16), 32, 3, padding=1, ranges=2),
    "no_padding": Case((1, 12, 20, 16), 32, 3),
    "dilated": Case((1, 20, 20, 8), 24, 3, padding=(2, 1), dilation=2),
    "uneven_window": Case((1, 11, 23, 5), 33, (5, 2), stride=(3, 2), padding=(2, 0)),
    "grouped": Case((1, 13, 13, 12), 40, 3, padding=1, groups=4),
    "grouped_pointwise": Case((1, 13, 13, 12), 40, 1, groups=4),
    "one_output": Case((1, 9, 9, 8), 1, 3, padding=1),
    "line_of_one": Case((1, 40, 1, 8), 16, (3, 1), padding=(1, 0)),
    "one_dimension": Case((2, 50, 8), 24, 5, stride=2, padding=2),
    "three_dimensions": Case((1, 6, 9, 8, 4), 20, 3, stride=(1, 2, 1), padding=1),
    "padding_beyond_the_image": Case((1, 3, 3, 4), 16, 3, padding=3),
    "heavy_epilogue": Case((1, 14, 14, 16), 32, 3, padding=1, activation="gelu", residual=True),
    "dynamic_batch": Case((3, 9, 9, 16), 32, 3, padding=1, dynamic_batch=True, residual=True, ranges=2),
    "dynamic_batch_pointwise": Case((3, 9, 9, 16), 32, 1, dynamic_batch=True, residual=True),
    "bare": Case((1, 9, 9, 16), 32, 3, bias=False, activation=None),
    # On a CPU with AMX these run on tiles.
    "bf16_halves_on_one_line": Case((1, 28, 28, 32), 40, 3, padding=1, element="bf16", ranges=3),
    "bf16_halves_on_two_lines": Case((2, 9, 14, 32), 64, 3, padding=1, element="bf16", residual=True),
    "bf16_ragged_lines": Case((1, 7, 33, 32), 40, 3, padding=1, element="bf16"),
    "bf16_read_in_place": Case((1, 16, 30, 32), 32, 3, element="bf16"),
    "bf16_strided": Case((1, 28, 28, 64), 40, 3, stride=2, padding=1, element="bf16"),
    "bf16_pointwise_strided": Case((1, 14, 14, 512), 64, 1, stride=2, element="bf16"),
    "bf16_grouped": Case((1, 14, 14, 64), 64, 3, padding=1, groups=2, element="bf16"),
    "bf16_dilated": Case((1, 14, 14, 32), 64, 3, padding=2, dilation=2, element="bf16"),
    "bf16_three_dimensions": Case((1, 6, 9, 8, 32), 40, 3, padding=1, element="bf16"),
    "bf16_odd_channels": Case((1, 23, 37, 3), 40, 7, stride=2, padding=3, element="bf16", ranges=2),
    "bf16_odd_channels_of_many": Case((2, 9, 11, 35), 24, 3, padding=1, element="bf16"),
    "bf16_odd_channels_pointwise_strided": Case((1, 11, 13, 5), 40, 1, stride=2, element="bf16"),
    "bf16_odd_channels_of_groups": Case((1, 9, 9, 6), 8, 3, padding=1, groups=2, element="bf16"),
    "bf16_odd_channels_pointwise": Case((1, 9, 9, 13), 40, 1, element="bf16"),
    "bf16_pointwise_tiles": Case((2, 9, 9, 64), 48, 1, element="bf16"),
    **{f"{t}_padded": Case((1, 14, 14, 16), 40, 3, padding=1, element=t) for t in ("f16", "bf16", "f64")},
    **{f"{t}_pointwise": Case((1, 14, 14, 16), 40, 1, element=t) for t in ("f16", "bf16", "f64")},
}


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), at_levels(CASES))
def test_error_is_what_the_roundings_of_its_sums_allow(name: str, level: str) -> None:
    CASES[name].check(ConvFamily(), level)


@pytest.mark.parametrize(("name", "level"), on_tiles(CASES))
def test_error_on_tiles_is_what_the_roundings_of_its_sums_allow(name: str, level: str) -> None:
    CASES[name].check(ConvFamily(), level)


@pytest.mark.parametrize(
    ("change", "weights", "reason"),
    [
        (("channels_last = true", "channels_last = false"), ["", "w"], "channels are not last"),
        (("f32", "f32"), ["", ""], "the filter is not a weight"),
    ],
    ids=["channels_first", "runtime_filter"],
)
def test_refuses_with_a_reason(change: tuple[str, str], weights: list[str], reason: str) -> None:
    # 8 channels in and out on an 8 x 8 image: valid in both layouts.
    text = Case((1, 8, 8, 8), 8, 3, padding=1, bias=False, activation=None).text().replace(*change)
    refusal = plan_region(ConvFamily(), text, "conv", weights, LEVELS[0])
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_depthwise_refuses_other_convolutions() -> None:
    text = Case((1, 8, 8, 8), 8, 3, padding=1, groups=4, bias=False, activation=None).text()
    refusal = plan_region(DepthwiseFamily(), text, "conv", ["", "w"], LEVELS[0])
    assert isinstance(refusal, Refusal)
    assert "not depthwise" in refusal.reason
