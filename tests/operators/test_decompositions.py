"""Ops that capture decomposes by tables of its own (``own_table.py``), compiled, against eager by gate A."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, special

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import compile_program
from lowerkit.errors import UnsupportedError
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program

aten = torch.ops.aten


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Any:
        return self.function(*arguments)


def holds(function: Callable[..., Any], *arguments: Tensor) -> Program:
    """Asserts that gate A holds; returns the captured program, to be compiled for other values."""
    program = capture(Function(function).eval(), arguments)
    report = check_program(program.copy(), per_op=False)
    assert report.outputs
    assert report.passed, [row.verdict.reason for row in report.outputs if not row.verdict.passed]
    return program


def same(function: Callable[..., Any], *arguments: Tensor) -> None:
    """Every element is eager's, infinities and NaN too."""
    compiled = lowerkit.compile(Function(function).eval(), arguments)
    expected = function(*arguments)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for ours, other in zip(compiled.session.run(*arguments), wanted, strict=True):
        np.testing.assert_array_equal(ours, other.numpy())


POLYNOMIALS = {
    "chebyshev": [f"chebyshev_polynomial_{kind}" for kind in "tuvw"],
    "shifted chebyshev": [f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"],
    "others": ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"],
}


@pytest.mark.parametrize("family", POLYNOMIALS)
def test_polynomials(family: str) -> None:
    """Degrees of recurrences and of angles, inside and outside of -1 to 1, and at the ends."""
    x = torch.cat([torch.randn(9) * 1.5, torch.tensor([1.0, -1.0, 0.0, 0.5])]).unsqueeze(-1)
    degree = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.9, 6.0, 7.0, 12.0])
    holds(lambda x, degree: tuple(getattr(special, name)(x, degree) for name in POLYNOMIALS[family]), x, degree)


def test_polynomials_of_numbers() -> None:
    holds(lambda x, n: (special.legendre_polynomial_p(x, 5), special.hermite_polynomial_h(0.5, n)), torch.randn(7),
          torch.arange(7))  # fmt: skip


OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "trigamma": lambda x: torch.polygamma(1, x),
    "polygamma 4": lambda x: torch.polygamma(4, x),
    "erfc": torch.erfc,
    "erfcx": special.erfcx,
    "log_ndtr": special.log_ndtr,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_functions(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(40) * 4, torch.rand(20) * 25 - 5, torch.tensor([0.5, 1.0, 1.5, 2.0, 1e-4])]).to(dtype)
    holds(OF_ONE[name], x)


@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfc", "erfcx"])
def test_functions_at_extremes(name: str) -> None:
    x = torch.tensor([0.0, -1.0, -3.0, math.inf, -math.inf, math.nan, 1e30, -1e30])
    compiled = lowerkit.compile(Function(OF_ONE[name]).eval(), (x,))
    np.testing.assert_allclose(compiled(x), OF_ONE[name](x).numpy(), rtol=1e-6)


def test_zeta() -> None:
    s = torch.tensor([1.5, 2.0, 3.0, 7.0, 1.0, 0.5]).unsqueeze(-1)
    holds(special.zeta, s, torch.cat([torch.rand(8) * 20 + 0.1, torch.tensor([-2.5, -7.25, -3.0, 0.0])]))


def test_zeta_at_special_values() -> None:
    values = torch.tensor([*(sign * x for x in (math.inf, 3.4e38, 1e-45, 0.0, 1.0, 0.5, 1.5) for sign in (1, -1)), 2.0])
    values = torch.cat([values, torch.tensor([math.nan, 100.0])])
    s, q = (side.flatten() for side in torch.meshgrid(values, values, indexing="ij"))
    compiled = lowerkit.compile(Function(special.zeta).eval(), (s, q))
    np.testing.assert_allclose(compiled(s, q), special.zeta(s, q).numpy(), rtol=1e-5)


def test_degrees_that_no_float_holds() -> None:
    """Eager casts a degree to a float, and to an integer again."""
    same(special.hermite_polynomial_h, torch.tensor([2, -3, 5]), torch.tensor([2**63 - 1, 3, -(2**63)]))


def test_look_ups_of_any_index_under_a_mask() -> None:
    index = torch.tensor([[-1], [0], [3], [-9], [7]])
    columns = torch.arange(3)
    look_up = aten._unsafe_masked_index
    same(lambda x, mask, i: look_up(x, mask, [i, columns], -8.0), torch.randn(4, 3), torch.rand(5, 3) < 0.7, index)


@pytest.mark.parametrize("function", [torch.gcd, torch.lcm])
def test_divisors(function: Callable[..., Any]) -> None:
    same(function, torch.randint(-60, 60, (6, 7)), torch.tensor([0, 1, -6, 12, 35, -1, 48]))


def test_floats_taken_apart() -> None:
    x = torch.cat([torch.randn(9) * 1e3, torch.tensor([0.0, -0.0, 1e-40, -1e-45, 1.0, math.inf])])
    same(lambda x: (torch.frexp(x)[0], torch.signbit(x)), x)
    same(lambda x: torch.frexp(x)[1], x[:-1])
    same(torch.nextafter, x, torch.flip(x, [0]))
    assert math.isnan(lowerkit.compile(Function(torch.nextafter).eval(), (x, x))(x, x * math.nan)[0])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cummax", "cummin", "mode"])
def test_places_along_a_dim(name: str, dim: int) -> None:
    x = torch.randint(0, 4, (9, 5)).float()  # equals among them
    x[3, 2] = math.nan
    same(lambda x: tuple(getattr(torch, name)(x, dim)), x if name != "mode" else x.nan_to_num())


def test_log_of_a_running_sum() -> None:
    x = torch.randn(3, 11) * 300
    x[0, :2], x[1, 4], x[2, 5] = -math.inf, math.inf, math.nan
    holds(lambda x: torch.logcumsumexp(x, 1), x)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_segments(reduce: str) -> None:
    lengths = torch.tensor([3, 0, 1, 5])
    holds(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, unsafe=True), torch.randn(9, 4), lengths)


def test_writes_at_known_places() -> None:
    x = torch.randn(5, 7)
    same(lambda x, y: torch.diagonal_scatter(x, y, 2), x, torch.randn(5))
    same(lambda x, y: torch.diagonal_scatter(x, y, -1, 1, 0), x, torch.randn(5))
    same(lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (7, 2), 1), x, torch.randn(2, 3))
    same(lambda x: x.unsqueeze(0).unsqueeze(2).squeeze((0, 2)), x)


def test_a_strided_write_that_overlaps_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        lowerkit.compile(
            Function(lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (1, 1))).eval(),
            (torch.randn(9), torch.randn(2, 3)),
        )


def test_distances_of_pairs_and_antialiased_resizing() -> None:
    holds(torch.pdist, torch.randn(6, 4))
    holds(
        lambda x: torch.nn.functional.interpolate(x, (5, 13), mode="bilinear", antialias=True), torch.randn(2, 3, 11, 7)
    )


@pytest.mark.parametrize("factor", [pytest.param(1.01, marks=pytest.mark.exhaustive), 1.3, 2.1], ids=str)
def test_resizing_by_factors_that_change_no_size(factor: float) -> None:
    """Some of PyTorch's kernels heed no factor where the sizes have the ratio 1 or 2."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        lines, boxes = x[:, :, 0], x.unsqueeze(2)
        return tuple(
            torch.nn.functional.interpolate(data, scale_factor=(*[1.6] * (data.dim() - 3), factor), mode=mode)
            for data, modes in (
                (lines, ("nearest", "nearest-exact", "linear")),
                (x, ("nearest", "nearest-exact", "bilinear", "bicubic")),
                (boxes, ("nearest", "nearest-exact", "trilinear")),
            )
            for mode in modes
        )

    holds(function, torch.randn(1, 2, 5, 3))


def test_reductions_of_scalars() -> None:
    x = torch.randn(())

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (
            *(x.amax(0), x.cumsum(0), *x.max(0), torch.logsumexp(x, 0), x.gather(0, torch.tensor([0, 0]))),
            *(x.argmax(0), x.argmin(), x.cumprod(0), x.softmax(0), x.log_softmax(-1)),
            *(torch.count_nonzero(x, 0), torch.any(x, 0), torch.all(x, -1, True), x.std(0, correction=0)),
            *(*torch.var_mean(x, dim=0, correction=0), x.softmax(-1), x.log_softmax(0), x.flip(-1)),
        )

    same(function, x)


def test_medians_of_nothing() -> None:
    same(lambda x: (x.median(), x.nanmedian()), torch.empty(3, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_deviations_whose_squares_have_no_f32(dtype: torch.dtype) -> None:
    rows = [
        [1e25, -1e25, 3e25],
        [1e-25, -1e-25, 3e-25],
        [5, 5, 5],
        [0, 0, 0],
        [1, -2, 4],
        [1, 2, math.inf],
        [1, 2, math.nan],
    ]
    x = torch.tensor(rows, dtype=dtype)

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        every: tuple[dict[str, Any], ...] = ({}, {"keepdim": True}, {"correction": 0})
        return (
            *(torch.std(x, dim=1, **options) for options in every),
            *(part for options in every for part in torch.std_mean(x[:-2], dim=1, **options)),
            *(part for data, dims in ((y, (2, 0)), (z, None)) for part in torch.std_mean(data, dim=dims)),
        )

    def alone(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return torch.std(y, dim=(2, 0)), torch.std(z)

    y, z = torch.randn(3, 4, 5).to(dtype) + 7, torch.randn(3, 4).to(dtype)
    holds(function, x, y, z)
    holds(alone, y, z)


@pytest.mark.parametrize("keep", [False, True])
def test_every_reduction_along_the_dim_of_a_scalar(keep: bool) -> None:
    names = ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "logsumexp", "nansum")
    orders = (1, 2, 3, float("inf"))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reduced = [getattr(torch, name)(x, dim=dim, keepdim=keep) for name in names for dim in (0, -1)]
        deviations = torch.std_mean(x, dim=-1, correction=0, keepdim=keep)
        return (*reduced, *deviations, torch.var(x, dim=0, correction=0, keepdim=keep))

    def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.linalg.vector_norm(x, order, dim=0, keepdim=keep) for order in orders)

    same(function, torch.randn(()))
    holds(norms, torch.randn(()))


def test_products_of_experts() -> None:
    """Experts without rows, and rows behind the last end."""
    importlib.import_module("transformers.integrations.moe")  # registers the op
    product = torch.ops.transformers.grouped_mm_fallback
    rows, weight = torch.randn(9, 5), torch.randn(3, 5, 7)
    first, *others = (torch.tensor(ends, dtype=torch.int32) for ends in ([2, 2, 9], [0, 9, 9], [3, 4, 7]))
    compiled = compile_program(holds(lambda rows, weight, ends: product(rows, weight, ends), rows, weight, first))
    for ends in others:
        (ours,) = compiled.session.run(rows, weight, ends)
        np.testing.assert_allclose(ours, product(rows, weight, ends).numpy(), rtol=1e-5, atol=1e-6, err_msg=str(ends))


@pytest.mark.parametrize("size", [(3, 3), (20, 15), (1, 2)], ids=str)
@pytest.mark.parametrize("align", [False, True], ids=["halves", "corners"])
@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
def test_antialiased_resizing_of_nan(size: tuple[int, int], align: bool, is_open: bool) -> None:
    """A NaN or an infinity stays with the elements that have a part of it."""
    x = torch.randn(1, 2, 9, 7)
    x.view(-1)[::17], x.view(-1)[3::23] = float("nan"), float("inf")

    def resize(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True, align_corners=align)

    whole = torch.cat([x, x])
    if is_open:
        opened = ((dict.fromkeys(range(4), torch.export.Dim.AUTO),),)
        compiled = lowerkit.compile(Function(resize).eval(), (whole,), dynamic_shapes=opened)
    else:
        compiled = compile_program(holds(resize, torch.randn(2, 2, 9, 7)))
    (ours,) = compiled.session.run(whole)
    np.testing.assert_array_equal(np.isnan(ours), resize(whole).isnan().numpy())
    np.testing.assert_array_equal(np.isinf(ours), resize(whole).isinf().numpy())


@pytest.mark.parametrize("p", [2, 3, 4])
def test_norms_of_16_bits_beside_checks(p: int) -> None:
    """A pass before the one that respelled norms changed the module: its verifier has no bf16."""
    x, index = torch.randn(5).bfloat16(), torch.tensor([0, 3])
    holds(lambda x, y, index: (torch.dist(x, y, p), torch.norm(x, p), x[index]), x, torch.randn(5).bfloat16(), index)


def test_evenly_spaced_between_tensors() -> None:
    holds(lambda a, b: (torch.linspace(a, b, 50), torch.linspace(a, 3, 1), torch.linspace(-1, b, 8)),
          torch.tensor(-1.7), torch.tensor(2))  # fmt: skip
    with pytest.raises(UnsupportedError, match="linspace"):
        lowerkit.compile(
            Function(lambda a, b: torch.linspace(a, b, 50, dtype=torch.int32)).eval(),
            (torch.tensor(-1.7), torch.tensor(2)),
        )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [(), (5,)], ids=["one row", "rows"])
def test_margin_losses(rows: tuple[int, ...], reduction: str) -> None:
    """Labels end at the first -1 of a row: PyTorch's own decomposition does not see it. Eager leaves NaN out."""
    functional = torch.nn.functional
    x, weight = torch.randn(*rows, 6), torch.rand(6)
    labels = torch.stack([torch.randperm(6) for _ in range(5)])
    for row, count in enumerate((0, 1, 3, 5, 6)):
        labels[row, count:] = torch.where(torch.arange(6 - count) == 0, -1, labels[row, count:])
    labels = labels if rows else labels[2]
    one = torch.randint(0, 6, rows)

    def losses(x: Tensor, labels: Tensor, one: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.multilabel_margin_loss(x, labels, reduction=reduction),
            functional.multi_margin_loss(x, one, reduction=reduction),
            functional.multi_margin_loss(x, one, p=2, margin=0.5, weight=weight, reduction=reduction),
        )

    program = holds(losses, x.clone(), labels, one, weight)
    x[..., 2], x[..., 4] = float("nan"), float("inf")
    ours = compile_program(program).session.run(x, labels, one, weight)
    for found, wanted in zip(ours, losses(x, labels, one, weight), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


@pytest.mark.parametrize("align", [False, True], ids=["halves", "corners"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_at_no_place(mode: str, padding: str, align: bool) -> None:
    x, grid = torch.randn(1, 2, 5, 7), torch.rand(1, 4, 6, 2) * 2.4 - 1.2
    for place, lost in enumerate((math.nan, math.inf, -math.inf) * 2):
        grid.view(-1, 2)[place * 3, place % 2] = lost

    def sample(x: Tensor, grid: Tensor) -> Tensor:
        return torch.nn.functional.grid_sample(x, grid, mode, padding, align)

    (ours,) = lowerkit.compile(Function(sample).eval(), (x, grid)).session.run(x, grid)
    np.testing.assert_allclose(ours, sample(x, grid).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cosine_similarity(dtype: torch.dtype) -> None:
    holds(torch.nn.functional.cosine_similarity, torch.randn(3, 33).to(dtype), torch.randn(1, 33).to(dtype))


@pytest.mark.parametrize("scale", [1e18, 1e21])
def test_cosine_similarity_divides_each_side_by_its_norm(scale: float) -> None:
    """So does eager: the product of both sides leaves the type first."""
    a, b = torch.randn(3, 33) * scale, torch.randn(1, 33) * scale
    (ours,) = lowerkit.compile(Function(torch.nn.functional.cosine_similarity).eval(), (a, b)).session.run(a, b)
    np.testing.assert_allclose(ours, torch.nn.functional.cosine_similarity(a, b).numpy(), rtol=1e-5, atol=1e-7)
