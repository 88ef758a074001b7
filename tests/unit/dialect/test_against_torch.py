"""The numpy references agree with PyTorch, on odd shapes, groups, dilation and extreme values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.dialect import (
    AttentionOp,
    AvgPoolOp,
    ConvOp,
    ConvTransposeOp,
    CumulativeOp,
    GatherOp,
    GroupNormOp,
    LayerNormOp,
    MatmulOp,
    MaxPoolOp,
    ReduceOp,
    ResizeOp,
    RmsNormOp,
    RopeOp,
    ScatterOp,
    SoftmaxOp,
    SortOp,
    TopkOp,
)

Reference = Callable[..., list[Any]]


def torch_of(array: Any) -> torch.Tensor:
    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def numpy_of(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def close(found: Any, wanted: torch.Tensor, budget: float = 1e-12) -> None:
    expected = numpy_of(wanted.contiguous())
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=budget, atol=budget)


def normal(random: np.random.Generator, *shape: int, dtype: Any = np.float64) -> Any:
    return random.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("left", "right"), [((3, 5), (5, 7)), ((2, 1, 3, 5), (4, 5, 1)), ((1, 65), (65, 1)), ((6, 3, 5), (5, 2))]
)
def test_matmul(left: Any, right: Any, reference: Reference, random: np.random.Generator) -> None:
    a, b = normal(random, *left), normal(random, *right)
    wanted = torch.matmul(torch_of(a), torch_of(b))
    close(reference(MatmulOp.build, a, b)[0], wanted)
    swapped = np.ascontiguousarray(np.swapaxes(a, -1, -2)), np.ascontiguousarray(np.swapaxes(b, -1, -2))
    both = reference(lambda x, y: MatmulOp.build(x, y, transpose_lhs=True, transpose_rhs=True), *swapped)
    close(both[0], wanted)


def test_matmul_bf16_rounds_once(reference: Reference, random: np.random.Generator) -> None:
    a, b = normal(random, 9, 300, dtype=ml_dtypes.bfloat16), normal(random, 300, 5, dtype=ml_dtypes.bfloat16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(reference(MatmulOp.build, a, b)[0], exact.astype(ml_dtypes.bfloat16))


def test_matmul_of_int8_is_exact(reference: Reference, random: np.random.Generator) -> None:
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 200), (200, 4)))
    wanted = torch.matmul(torch_of(a).int(), torch_of(b).int())
    np.testing.assert_array_equal(reference(MatmulOp.build, a, b)[0], wanted.numpy())


CONVOLUTIONS = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": 2, "padding": 1, "dilation": 1, "groups": 2},
    {"stride": 1, "padding": 2, "dilation": 3, "groups": 1},
    {"stride": 3, "padding": 2, "dilation": 2, "groups": 4},
]


@pytest.mark.parametrize("spatial", [(13,), (11, 9), (7, 8, 9)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_conv(
    spatial: Any, options: dict[str, int], channels_last: bool, reference: Reference, random: np.random.Generator
) -> None:
    kernel = (3, 2, 3)[: len(spatial)]
    x, w = normal(random, 2, 4, *spatial), normal(random, 8, 4 // options["groups"], *kernel)
    function: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[len(spatial) - 1]
    wanted = function(torch_of(x), torch_of(w), **options)
    data = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    (found,) = reference(
        lambda a, b: ConvOp.build(
            a,
            b,
            channels_last=channels_last,
            strides=options["stride"],
            padding=options["padding"],
            dilation=options["dilation"],
            groups=options["groups"],
        ),
        data,
        w,
    )
    close(np.ascontiguousarray(np.moveaxis(found, -1, 1)) if channels_last else found, wanted)


def test_conv_asymmetric_padding(reference: Reference, random: np.random.Generator) -> None:
    x, w = normal(random, 1, 2, 6, 5), normal(random, 3, 2, 3, 3)
    wanted = functional.conv2d(functional.pad(torch_of(x), (2, 0, 0, 1)), torch_of(w))
    close(reference(lambda a, b: ConvOp.build(a, b, padding=[0, 1, 2, 0]), x, w)[0], wanted)


@pytest.mark.parametrize("spatial", [(7,), (5, 6), (3, 4, 5)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_conv_transpose(
    spatial: Any, options: dict[str, int], channels_last: bool, reference: Reference, random: np.random.Generator
) -> None:
    kernel, extra = (3, 4, 3)[: len(spatial)], options["stride"] - 1
    x, w = normal(random, 2, 4, *spatial), normal(random, 4, 3, *kernel)
    functions = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
    function: Any = functions[len(spatial) - 1]
    wanted = function(torch_of(x), torch_of(w), output_padding=extra, **options)
    data = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    (found,) = reference(
        lambda a, b: ConvTransposeOp.build(
            a,
            b,
            channels_last=channels_last,
            strides=options["stride"],
            padding=options["padding"],
            dilation=options["dilation"],
            output_padding=extra,
            groups=options["groups"],
        ),
        data,
        w,
    )
    close(np.ascontiguousarray(np.moveaxis(found, -1, 1)) if channels_last else found, wanted)


@pytest.mark.parametrize("mask", [None, "bool", "float", "row"])
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(
    mask: Any, heads: int, key_heads: int, causal: bool, reference: Reference, random: np.random.Generator
) -> None:
    q = normal(random, 2, heads, 5, 8)
    k, v = normal(random, 2, key_heads, 7, 8), normal(random, 2, key_heads, 7, 3)
    masks = {
        "bool": random.random((2, 1, 5, 7)) < 0.6,
        "float": normal(random, heads, 5, 7),
        "row": random.random((2, 1, 1, 7)) < 0.6,
    }
    if mask and causal:
        # PyTorch takes one of them only: both together are their sum.
        triangle = np.where(np.tri(5, 7, dtype=bool), 0.0, -np.inf)
        given = masks[mask]
        additive = (np.where(given, 0.0, -np.inf) if given.dtype == bool else given) + triangle
        expected_mask, expected_causal = torch_of(np.broadcast_to(additive, (2, heads, 5, 7))), False
    else:
        expected_mask, expected_causal = (torch_of(masks[mask]) if mask else None), causal
    wanted = functional.scaled_dot_product_attention(
        torch_of(q), torch_of(k), torch_of(v), expected_mask, is_causal=expected_causal, enable_gqa=True
    )
    operands = [q, k, v, *([masks[mask]] if mask else [])]
    close(reference(lambda *values: AttentionOp.build(*values, causal=causal), *operands)[0], wanted, 1e-11)


def test_attention_scale(reference: Reference, random: np.random.Generator) -> None:
    q, k, v = (normal(random, 1, 2, 4, 6) for _ in range(3))
    wanted = functional.scaled_dot_product_attention(torch_of(q), torch_of(k), torch_of(v), scale=0.7)
    close(reference(lambda *values: AttentionOp.build(*values, scale=0.7), q, k, v)[0], wanted, 1e-11)


EXTREMES = np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, -np.inf], [-np.inf] * 3, [1e38, 3e38, -1e38]], np.float32)


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


def test_gather(reference: Reference, random: np.random.Generator) -> None:
    table, indices = normal(random, 11, 6), random.integers(0, 11, (3, 4))
    close(reference(GatherOp.build, table, indices)[0], functional.embedding(torch_of(indices), torch_of(table)))
    columns = np.array([-1, 2, -6])
    close(
        reference(lambda d, i: GatherOp.build(d, i, axis=1), table, columns)[0],
        torch_of(table)[:, torch_of(columns)],
    )


@pytest.mark.parametrize(("kind", "reduce"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")])
def test_scatter(kind: str, reduce: str, reference: Reference, random: np.random.Generator) -> None:
    table, indices, updates = normal(random, 6, 5), random.integers(0, 5, 9), normal(random, 6, 9)
    (found,) = reference(lambda d, i, u: ScatterOp.build(d, i, u, axis=1, kind=kind), table, indices, updates)
    places = torch_of(indices).expand(6, 9)
    close(found, torch_of(table).scatter_reduce(1, places, torch_of(updates), reduce))


def test_the_last_of_equal_indices_stands(reference: Reference, random: np.random.Generator) -> None:
    table, rows = normal(random, 4, 5), normal(random, 3, 5)
    (written,) = reference(ScatterOp.build, table, np.array([1, 3, -3]), rows)
    assert np.array_equal(written, np.stack([table[0], rows[2], table[2], rows[1]]))


@pytest.mark.parametrize("size", [(7, 9), (3, 4), (12, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resize(size: Any, dtype: Any, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 2, 3, 6, 5, dtype=dtype)
    budget = 2e-6 if dtype == np.float32 else 1e-12

    def run(mode: str, coordinates: str, rounding: str = "floor") -> Any:
        return reference(
            lambda a: ResizeOp.build(a, mode=mode, coordinates=coordinates, nearest_rounding=rounding, size=size), x
        )[0]

    tensor = torch_of(x)
    close(run("nearest", "asymmetric"), functional.interpolate(tensor, size, mode="nearest"))
    close(run("nearest", "half_pixel", "round_prefer_ceil"), functional.interpolate(tensor, size, mode="nearest-exact"))
    for mode, name in (("linear", "bilinear"), ("cubic", "bicubic")):
        close(run(mode, "half_pixel"), functional.interpolate(tensor, size, mode=name), 4 * budget)
        aligned = functional.interpolate(tensor, size, mode=name, align_corners=True)
        close(run(mode, "align_corners"), aligned, 4 * budget)


@pytest.mark.parametrize("scale", [1.5, 2.0, 0.7])
def test_resize_by_scale(scale: float, reference: Reference, random: np.random.Generator) -> None:
    """PyTorch keeps a scale that was given, even where the sizes would give another one."""
    x = normal(random, 1, 2, 7, dtype=np.float32)
    wanted = functional.interpolate(torch_of(x), scale_factor=scale, mode="linear", recompute_scale_factor=False)
    (found,) = reference(lambda a: ResizeOp.build(a, mode="linear", size=[math.floor(7 * scale)], scales=[scale]), x)
    close(found, wanted, 1e-5)


def test_resize_in_one_and_three_dimensions(reference: Reference, random: np.random.Generator) -> None:
    line, volume = normal(random, 2, 3, 9), normal(random, 1, 2, 4, 5, 6)
    close(
        reference(lambda a: ResizeOp.build(a, mode="linear", size=[5]), line)[0],
        functional.interpolate(torch_of(line), 5, mode="linear"),
    )
    close(
        reference(lambda a: ResizeOp.build(a, mode="linear", size=[7, 3, 8]), volume)[0],
        functional.interpolate(torch_of(volume), (7, 3, 8), mode="trilinear"),
    )


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool, reference: Reference, random: np.random.Generator) -> None:
    for array in (
        random.integers(-3, 3, (4, 17)),
        normal(random, 3, 8),
        EXTREMES,
        np.array([np.nan, 1, np.nan, -np.inf, 1, np.inf]),
        random.random((2, 9)) < 0.5,
    ):
        wanted = torch.sort(torch_of(array), dim=-1, descending=descending, stable=True)
        values, indices = reference(lambda a: SortOp.build(a, descending=descending), array)
        close(values, wanted.values)
        close(indices, wanted.indices)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 5, 11, 3)
    for axis, k in ((1, 4), (0, 5), (2, 1)):
        wanted = torch.topk(torch_of(x), k, axis, largest)
        values, indices = reference(lambda a, axis=axis, k=k: TopkOp.build(a, k=k, axis=axis, largest=largest), x)
        close(values, wanted.values)
        close(indices, wanted.indices)


def test_topk_takes_the_first_of_equals(reference: Reference) -> None:
    values, indices = reference(lambda a: TopkOp.build(a, k=3), np.array([1.0, 7.0, 7.0, 7.0, 2.0]))
    np.testing.assert_array_equal(values, [7.0, 7.0, 7.0])
    np.testing.assert_array_equal(indices, [1, 2, 3])


@pytest.mark.parametrize("half_table", [False, True])
def test_rope(half_table: bool, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 2, 3, 5, 8)
    angles = normal(random, 5, 4)
    tables = angles if half_table else np.concatenate([angles, angles], -1)
    # as transformers writes it for Llama
    tensor = torch_of(x)
    rotated = torch.cat((-tensor[..., 4:], tensor[..., :4]), -1)
    full = torch_of(np.concatenate([angles, angles], -1))
    close(
        reference(RopeOp.build, x, np.cos(tables), np.sin(tables))[0], tensor * full.cos() + rotated * full.sin(), 1e-12
    )
    # neighbours as pairs: multiplication of complex numbers
    pairs = torch.view_as_complex(tensor.reshape(2, 3, 5, 4, 2).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones(5, 4, dtype=torch.float64), torch_of(angles)))
    tables = angles if half_table else np.repeat(angles, 2, -1)
    (found,) = reference(lambda a, c, s: RopeOp.build(a, c, s, interleaved=True), x, np.cos(tables), np.sin(tables))
    close(found, turned.reshape(2, 3, 5, 8), 1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative(axis: int, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 4, 7)
    tensor = torch_of(x)
    wanted = {
        "sum": tensor.cumsum(axis),
        "prod": tensor.cumprod(axis),
        "max": tensor.cummax(axis).values,
        "min": tensor.cummin(axis).values,
    }
    for kind, expected in wanted.items():
        close(reference(lambda a, kind=kind: CumulativeOp.build(a, kind=kind, axis=axis), x)[0], expected)
    reverse = torch.flip(torch.flip(tensor, [axis]).cumsum(axis), [axis])
    close(reference(lambda a: CumulativeOp.build(a, axis=axis, reverse=True), x)[0], reverse)
    exclusive = tensor.cumsum(axis) - tensor
    close(reference(lambda a: CumulativeOp.build(a, axis=axis, exclusive=True), x)[0], exclusive)


def test_cumulative_of_nan(reference: Reference) -> None:
    for kind, function in (("max", torch.cummax), ("min", torch.cummin)):
        (found,) = reference(lambda a, kind=kind: CumulativeOp.build(a, kind=kind), EXTREMES)
        close(found, function(torch_of(EXTREMES), -1).values)
