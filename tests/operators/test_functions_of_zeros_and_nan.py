"""Distances, losses, scans, gradients and resizing where a NaN, an infinity or the sign of a zero decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lowerkit
from lowerkit.capture.torch_export.operators import aten
from lowerkit.program.dtypes import to_torch
from tests.operators.test_decompositions import Function

NAN, INFINITY = math.nan, math.inf


def hold(function: Callable[..., Any], *arguments: Tensor) -> None:
    """Compares with eager: the same shapes, NaN, infinities and signs of zeros."""
    compiled = lowerkit.compile(Function(function).eval(), arguments)
    for ours, eager in zip(map(to_torch, compiled.session.run(*arguments)), function(*arguments), strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-6, atol=1e-6, equal_nan=True)
        assert not ((eager == 0) & (torch.signbit(ours) != torch.signbit(eager))).any()


def test_the_largest_distance_passes_over_nan() -> None:
    """Eager's ``cdist`` does, also over two infinities that meet; its ``pdist`` does not. Of no elements both are 0."""
    x = torch.tensor([[1.0, NAN, 3.0], [INFINITY, 2.0, 1.0], [0.0, 5.0, -2.0]])
    y = torch.tensor([[INFINITY, 1.0, 0.0], [1.0, NAN, 2.0]])
    hold(
        lambda x, y: [
            *(torch.cdist(x, y, p=INFINITY), torch.cdist(x[:, :0], y[:, :0], p=INFINITY)),
            *(torch.pdist(x, p=INFINITY), torch.cdist(x, y, p=1.0), torch.cdist(x, y, p=0.0)),
        ],
        *(x, y),
    )


def test_labels_behind_the_first_minus_one_add_nothing() -> None:
    """PyTorch's own decomposition of the op that gives the labels too adds terms for them."""
    value = torch.tensor([[0.1, 0.2, 0.4, 0.8], [0.5, 0.1, 0.2, 0.3]])
    target = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 0]])
    forward = aten.multilabel_margin_loss_forward.default
    hold(
        lambda value, target: [
            *(*forward(value, target, 0), *forward(value, target, 1), *forward(value[0], target[0], 2)),
        ],
        *(value, target),
    )


def test_a_running_sum_of_exponentials_begins_with_a_sum() -> None:
    """log(exp(-0.0)) is 0.0; a tensor of rank 0 is no sum."""
    x = torch.tensor([[-0.0, 1.0], [0.0, -0.0]])
    hold(lambda x: [torch.logcumsumexp(x, 0), torch.logcumsumexp(x, 1), torch.logcumsumexp(x[0, 0], 0)], x)


def test_a_gradient_of_silu_may_be_broadcast() -> None:
    gradient = torch.tensor([[1.0, NAN, INFINITY, -INFINITY], [88.0, -100.0, 0.0, -0.0]])
    hold(lambda g: [aten.silu_backward(g, g[0]), aten.silu_backward(g, g), aten.silu_backward(g[0], g)], gradient)


@pytest.mark.parametrize("is_open", [False, True])
def test_half_pixel_positions_are_rounded_once(is_open: bool) -> None:
    """Half a pixel less is subtracted from a product that was not rounded: a weight of 1e-8 keeps an infinity one."""
    image = torch.full((1, 1, 2, 2), INFINITY)

    def resize(image: Tensor) -> list[Tensor]:
        return [
            functional.interpolate(image, size=size, mode="bilinear") for size in ((6, 8), (5, 7), (3, 14), (12, 11))
        ]

    dims = dict.fromkeys((2, 3), torch.export.Dim.AUTO)
    exported = torch.export.export(Function(resize), (image,), dynamic_shapes=((dims,),) if is_open else None)
    compiled = lowerkit.compile(exported)
    for ours, eager in zip(map(to_torch, compiled.session.run(image)), resize(image), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


def test_a_tensor_is_inverted_without_a_side_effect() -> None:
    """PyTorch writes it out with a check that the second round of tracing would trip over."""
    torch.manual_seed(0)
    hold(
        lambda x, y: [torch.linalg.tensorinv(x, ind=2), torch.linalg.tensorinv(y, ind=1)],
        *(torch.randn(2, 3, 3, 2), torch.randn(6, 2, 3)),
    )


def test_factors_of_a_matrix_without_elements() -> None:
    hold(
        lambda x: [*torch.geqrf(x), *torch.linalg.qr(x), *torch.linalg.qr(x, mode="complete")],
        torch.empty(0, 0, 0),
    )


def test_no_turn_is_taken_for_the_smallest_degree() -> None:
    """A degree below 0 gives 0; one less than the smallest integer is the largest, and the loop would not end."""
    degree = torch.tensor([torch.iinfo(torch.int64).min, -1, 3])
    hold(lambda x, n: [torch.special.chebyshev_polynomial_t(x, n)], torch.tensor([0.5, 0.5, 0.5]), degree)
