"""Softmax, norms, pools and reductions of the numpy references agree with PyTorch, at extremes too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.dialect import (
    AvgPoolOp,
    GroupNormOp,
    LayerNormOp,
    MaxPoolOp,
    ReduceOp,
    RmsNormOp,
    SoftmaxOp,
)
from tests.unit.dialect.torch_arrays import EXTREMES, Reference, close, normal, torch_of


@pytest.mark.parametrize("log", [False, True])
def test_softmax(log: bool, reference: Reference, random: np.random.Generator) -> None:
    function = torch.log_softmax if log else torch.softmax
    x = normal(random, 3, 7, 5) * 30
    for axis in range(3):
        close(reference(lambda a, axis=axis: SoftmaxOp.build(a, axis=axis, log=log), x)[0], function(torch_of(x), axis))
    (found,) = reference(lambda a: SoftmaxOp.build(a, log=log), EXTREMES)
    close(found, function(torch_of(EXTREMES), -1), 1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_norms(dtype: Any, reference: Reference, random: np.random.Generator) -> None:
    # Against PyTorch in float64, rounded once: its own f32 loses more digits than one rounding.
    budget = {"float64": 1e-12, "float32": 2.4e-7, "bfloat16": 8e-3}[np.dtype(dtype).name]

    def wide(array: Any) -> torch.Tensor:
        return torch_of(array).double()

    def agree(found: Any, wanted: torch.Tensor) -> None:
        close(found, wanted.to(torch_of(x).dtype), budget)

    x = (normal(random, 2, 6, 5, 3) * 3 + 7).astype(dtype)
    scale, bias = normal(random, 5, 3, dtype=dtype), normal(random, 5, 3, dtype=dtype)
    agree(
        reference(lambda a, s, b: LayerNormOp.build(a, s, b, normalized_rank=2), x, scale, bias)[0],
        functional.layer_norm(wide(x), (5, 3), wide(scale), wide(bias)),
    )
    agree(
        reference(lambda a: LayerNormOp.build(a, epsilon=1e-2), x)[0],
        functional.layer_norm(wide(x), (3,), eps=1e-2),
    )
    agree(
        reference(lambda a, s: RmsNormOp.build(a, s, normalized_rank=2, epsilon=1e-3), x, scale)[0],
        functional.rms_norm(wide(x), (5, 3), wide(scale), eps=1e-3),
    )
    weight, offset = normal(random, 6, dtype=dtype), normal(random, 6, dtype=dtype)
    wanted = functional.group_norm(wide(x), 3, wide(weight), wide(offset))
    agree(reference(lambda a, s, b: GroupNormOp.build(a, s, b, groups=3), x, weight, offset)[0], wanted)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    (found,) = reference(lambda a, s, b: GroupNormOp.build(a, s, b, groups=3, channels_last=True), last, weight, offset)
    agree(np.ascontiguousarray(np.moveaxis(found, -1, 1)), wanted)
    agree(reference(lambda a: GroupNormOp.build(a, groups=6), x)[0], functional.instance_norm(wide(x)))


@pytest.mark.parametrize("spatial", [(17,), (11, 10), (7, 8, 9)], ids=["1d", "2d", "3d"])
def test_max_pool(spatial: Any, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 2, 3, *spatial)
    x[0, 0].flat[3] = np.nan
    x[0, 1].flat[5] = np.inf
    x[1, 2] = -np.inf
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(spatial) - 1]
    for kernel, stride, padding, dilation in ((2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2)):
        (found,) = reference(
            lambda a, options=(kernel, stride, padding, dilation): MaxPoolOp.build(
                a, kernel=options[0], strides=options[1], padding=options[2], dilation=options[3]
            ),
            x,
        )
        close(found, function(torch_of(x), kernel, stride, padding, dilation))


def test_max_pool_ceil_mode(reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 1, 2, 10, 10)
    (found,) = reference(lambda a: MaxPoolOp.build(a, kernel=3, strides=2, padding=[0, 1, 0, 1]), x)
    close(found, functional.max_pool2d(torch_of(x), 3, 2, ceil_mode=True))


def test_max_pool_of_integers(reference: Reference) -> None:
    x = np.full((1, 1, 4), -128, np.int8)
    assert (reference(lambda a: MaxPoolOp.build(a, kernel=3, strides=1, padding=1), x)[0] == -128).all()


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("divisor", [0, 5])
def test_avg_pool(
    count_include_pad: bool, ceil_mode: bool, divisor: int, reference: Reference, random: np.random.Generator
) -> None:
    x = normal(random, 2, 3, 10, 11)
    wanted = functional.avg_pool2d(torch_of(x), 3, 2, 1, ceil_mode, count_include_pad, divisor or None)
    # 10 rows with padding 1 leave a rest of 1 for ceil mode to fill; 11 columns fit exactly.
    extra = [1, 0] if ceil_mode else [0, 0]
    (found,) = reference(
        lambda a: AvgPoolOp.build(
            a,
            kernel=3,
            strides=2,
            padding=[1, 1 + extra[0], 1, 1 + extra[1]],
            ceil_extra=extra,
            count_include_pad=count_include_pad,
            divisor=divisor,
        ),
        x,
    )
    close(found, wanted)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keep", [False, True])
def test_reduce(axes: Any, keep: bool, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 3, 4, 5)
    tensor = torch_of(x)

    def run(kind: str, array: Any) -> Any:
        return reference(lambda a: ReduceOp.build(a, kind=kind, axes=axes, keep_dims=keep), array)[0]

    close(run("sum", x), tensor.sum(axes, keep))
    close(run("mean", x), tensor.mean(axes, keep))
    close(run("max", x), tensor.amax(axes, keep))
    close(run("min", x), tensor.amin(axes, keep))
    mask = x > 1
    close(run("any", mask), torch.any(torch_of(mask), axes, keep))
    close(run("all", ~mask), torch.all(torch_of(~mask), axes, keep))
    if len(axes) == 1:
        close(run("prod", x), tensor.prod(axes[0], keep))
        close(run("argmax", x), tensor.argmax(axes[0], keep))
        close(run("argmin", x), tensor.argmin(axes[0], keep))


@pytest.mark.parametrize("kind", ["max", "min", "sum", "argmax", "argmin"])
def test_reduce_extremes(kind: str, reference: Reference) -> None:
    functions = {"max": torch.amax, "min": torch.amin, "sum": torch.sum, "argmax": torch.argmax, "argmin": torch.argmin}
    # Not the last row for sums: whether it overflows depends on the order and width of the summation.
    floats = EXTREMES[:3] if kind == "sum" else EXTREMES
    for array in (floats, floats.astype(ml_dtypes.bfloat16), np.array([[5, 5, 1], [-3, -3, -3]], np.int32)):
        wanted = functions[kind](torch_of(array), -1)
        (found,) = reference(lambda a: ReduceOp.build(a, kind=kind, axes=[-1]), array)
        # torch widens sums of integers to int64
        close(found.astype(np.int64) if kind == "sum" and array.dtype == np.int32 else found, wanted, 1e-2)


def test_sum_of_bf16_does_not_stall(reference: Reference) -> None:
    """4096 ones: a bf16 accumulator would stop at 256."""
    (found,) = reference(lambda a: ReduceOp.build(a, kind="sum"), np.ones(4096, ml_dtypes.bfloat16))
    assert float(found) == 4096.0
