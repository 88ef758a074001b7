"""Products, convolutions and attention of the numpy references agree with PyTorch, on odd shapes and dilation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.dialect import (
    AttentionOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
)
from tests.unit.dialect.torch_arrays import Reference, close, normal, torch_of


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
