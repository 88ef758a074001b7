"""Operators whose windows, positions or divisors depend on symbolic sizes, at sizes beside the exported ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

import lowerkit
from lowerkit.compiled import Compiled
from lowerkit.errors import LowerkitError, RuntimeFault, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


class Signals(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.adaptive_avg_pool1d(x, 3),
            functional.adaptive_avg_pool1d(x, 7),
            functional.interpolate(x, size=7),
            functional.interpolate(x, scale_factor=2),
            functional.interpolate(x, scale_factor=1.5),
            functional.interpolate(x, size=5, mode="nearest-exact"),
            functional.interpolate(x, scale_factor=0.5, mode="linear"),
            functional.interpolate(x, size=6, mode="linear", align_corners=True),
            x.var(2),
            x.std(2, correction=5),
            torch.var_mean(x, 2, correction=3)[0],
            functional.pad(x, (-1, -2)),
            functional.pad(x, (-1, 3), value=2.0),
        )


class Images(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            functional.avg_pool2d(x[0], 2),
            functional.adaptive_avg_pool2d(x, (2, 3)),
            functional.interpolate(x, size=(5, 4), mode="bicubic"),
            functional.interpolate(x, scale_factor=2, mode="bilinear"),
        )


class Products(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij,bjk->bk", x, y)


def assert_as_eager(compiled: Any, module: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected = module.double()(*(x.double() for x in inputs))
    for number, (result, wanted) in enumerate(zip(compiled(*inputs), expected, strict=True)):
        np.testing.assert_allclose(result, wanted.numpy(), rtol=2e-5, atol=2e-5, err_msg=f"output {number}")


def test_signals_from_the_shortest_length_on() -> None:
    module = Signals()
    compiled = lowerkit.compile(module, (torch.randn(2, 3, 9),), dynamic_shapes=({2: Dim("n", min=5, max=64)},))
    for length in (5, 6, 7, 8, 13, 16, 31, 64):
        assert_as_eager(compiled, module, torch.randn(2, 3, length))


def test_images_of_any_height_and_width() -> None:
    module = Images()
    dims: Any = {2: Dim.AUTO, 3: Dim.AUTO}
    compiled = lowerkit.compile(module, (torch.randn(2, 3, 9, 8),), dynamic_shapes=(dims,))
    ran = 0
    for height, width in ((9, 8), (5, 6), (7, 16), (31, 33), (12, 13), (17, 4)):
        x = torch.randn(2, 3, height, width)
        try:
            assert_as_eager(compiled, module, x)
            ran += 1
        except RuntimeFault:  # LK8004: the shapes of ceil mode are decided by parity
            continue
    assert ran >= 2


@pytest.mark.parametrize("symbolic", [False, True])
def test_einsum_over_a_label_of_one_element(symbolic: bool) -> None:
    module = Products()
    inputs = (torch.randn(2, 6, 4), torch.randn(2, 1, 5))
    shapes: Any = ({1: Dim.AUTO, 2: Dim.AUTO}, {2: Dim.AUTO}) if symbolic else None
    compiled = lowerkit.compile(module, inputs, dynamic_shapes=shapes)
    for rows, inner, columns in [(6, 4, 5), (3, 7, 2), (11, 2, 9)] if symbolic else [(6, 4, 5)]:
        assert_as_eager(compiled, module, torch.randn(2, rows, inner), torch.randn(2, 1, columns))


def test_a_model_that_is_one_view_has_a_file() -> None:
    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0] * x.shape[1], x.shape[2])

    dims: Any = {0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO}
    x = torch.randn(6, 4, 9)
    compiled = lowerkit.compile(View(), (x,), dynamic_shapes=(dims,))
    np.testing.assert_array_equal(compiled.session.run(x)[0], x.reshape(24, 9).numpy())


@pytest.mark.parametrize(
    ("mode", "least"), [("reflect", {(3, -4): 4}), ("replicate", {(3, -4): 3}), ("circular", {(3, -4): 7, (-4, 3): 7})]
)
@pytest.mark.parametrize("pad", [(-1, 2), (2, -1), (-1, -2), (3, -4), (-4, 3), (-1, 0)])
def test_padding_that_cuts_off_at_any_size(mode: str, least: dict[tuple[int, int], int], pad: tuple[int, int]) -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.pad(x, pad, mode=mode)

    compiled = lowerkit.compile(Padded(), (torch.randn(2, 3, 9),), dynamic_shapes=({2: Dim.AUTO},))
    for length in range(least.get(pad, 5), 13):
        assert_as_eager(compiled, Padded(), torch.randn(2, 3, length))
    for length in range(1, least.get(pad, 2)):
        with pytest.raises(LowerkitError, match="LK8004"):
            compiled(torch.randn(2, 3, length))


def test_what_cannot_be_right_is_refused() -> None:
    class Changed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.interpolate(x, scale_factor=0.7) * 2

    with pytest.raises(UnsupportedError, match="resized by 0.7"):
        lowerkit.compile(Changed(), (torch.randn(2, 3, 9),), dynamic_shapes=({2: Dim.AUTO},))


class FixedChannels(nn.Module):
    """Symbols that the model fixes: the weights decide the channels of what was to be symbolic in every dim."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(17).eval()
        self.row = nn.Parameter(torch.randn(17))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shifted = x + self.row
        return (
            self.norm(x),
            x.repeat(2, 1),
            shifted.view(x.shape[1], x.shape[0]).repeat(2, 3),
            torch.cond(x.sum() > 0, lambda x: x + self.row, lambda x: x * x.shape[1], (x,)),
            functional.adaptive_avg_pool1d(x, 5),
        )


def test_sizes_that_the_model_fixes_are_known() -> None:
    module = FixedChannels().eval()
    compiled = lowerkit.compile(module, (torch.randn(3, 17),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert compiled.session.signature.inputs[0].shape[1] == 17
    for rows in (3, 2, 11):
        assert_as_eager(compiled, module.float(), torch.randn(rows, 17))


class GroupedUpsampling(nn.Module):
    """Half types: the sums are rounded out of a buffer of their own, whose extents the tasks are counted by."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ConvTranspose1d(4, 8, 3, stride=2, groups=4)
        self.areas = nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1, groups=2, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.lines(x[:, :, 0]), self.areas(x)


@pytest.mark.parametrize("kind", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.exhaustive)])
def test_grouped_transposed_convolutions_of_half_types(kind: torch.dtype) -> None:
    module = GroupedUpsampling().to(kind)
    dims: Any = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    compiled = lowerkit.compile(module, (torch.randn(2, 4, 3, 5, dtype=kind),), dynamic_shapes=(dims,))
    for batch, height, width in ((2, 3, 5), (3, 7, 4)):
        x = torch.randn(batch, 4, height, width).to(kind)
        for result, wanted in zip(compiled(x), module(x), strict=True):
            found = torch.as_tensor(result.astype(np.float32))
            torch.testing.assert_close(found, wanted.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("epilogue", [False, True])
def test_a_product_over_no_elements(epilogue: bool) -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            product = torch.matmul(x[:, -2:0:2], y)
            return torch.cos(product + 1) if epilogue else product

    arguments = torch.randn(2, 2), torch.randn(0, 8)
    shapes = {"x": (Dim.AUTO, Dim.AUTO), "y": (Dim.AUTO, Dim.AUTO)}
    compiled = lowerkit.compile(torch.export.export(Product(), arguments, dynamic_shapes=shapes))
    for rows, columns in ((2, 8), (3, 2), (5, 3), (257, 70)):
        given = torch.randn(rows, 2), torch.randn(0, columns)
        np.testing.assert_allclose(np.asarray(compiled(*given)), Product()(*given).numpy(), rtol=1e-6)


class Squeezed(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.squeeze() + 1, x.squeeze((0, 1)) * 2, x.squeeze(0) - 1, x[:, :, :1].squeeze(-1)


def test_squeezed_dims_are_not_one() -> None:
    """torch traces them as if they were not; at 1 the result would have one dim less."""
    module = Squeezed()
    compiled = lowerkit.compile(module, (torch.randn(4, 1, 3),), dynamic_shapes=({0: Dim("n", min=0, max=64)},))
    for count in (0, 2, 4, 64):
        assert_as_eager(compiled, module, torch.randn(count, 1, 3))
    with pytest.raises(RuntimeFault, match="holds only where n != 1"):
        compiled(torch.randn(1, 1, 3))


NO_ELEMENTS: list[tuple[Any, list[tuple[int, ...]]]] = [
    (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v), [(2, 2, 4, 8), (2, 2, 0, 8), (2, 2, 0, 8)]),
    (lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True), [(2, 2, 4, 8), (2, 2, 0, 8)]),
    (lambda q, k, v: (q @ k.mT * 0.3).softmax(-1) @ v, [(2, 2, 4, 8), (2, 2, 0, 8), (2, 2, 0, 8)]),
    (functional.scaled_dot_product_attention, [(0, 2, 4, 8)] * 3),
    (lambda x: functional.conv2d(x, torch.ones(4, 3, 3, 3), padding=1), [(0, 3, 6, 6)]),
    (lambda x: functional.max_pool2d(x, 2), [(0, 3, 6, 6)]),
    (lambda x: functional.adaptive_avg_pool2d(x, 4), [(0, 3, 6, 6)]),
    (torch.mm, [(3, 0), (0, 5)]),
    (torch.addmm, [(5,), (3, 0), (0, 5)]),
    (torch.bmm, [(0, 3, 4), (0, 4, 5)]),
    (lambda x: x.softmax(1), [(4, 0)]),
    (lambda x: x.sum(0), [(0, 4)]),
    (lambda x: x.mean(0), [(0, 4)]),
    (lambda x: x.prod(0), [(0, 4)]),
    (lambda x: x.amax(1), [(0, 4)]),
    (lambda x: x.norm(dim=0), [(0, 4)]),
    (lambda x: (x > 0).all(0), [(0, 4)]),
    (lambda x: functional.layer_norm(x, (4,)), [(0, 4)]),
    (lambda x: functional.group_norm(x, 1), [(0, 3, 4)]),
    (lambda x: x.gather(0, torch.zeros(0, 4, dtype=torch.int64)), [(3, 4)]),
    (lambda x: x.scatter(0, torch.zeros(0, 4, dtype=torch.int64), 2.0), [(3, 4)]),
    (lambda x: functional.embedding(torch.zeros(0, 3, dtype=torch.int64), x), [(3, 4)]),
    (lambda x: functional.pad(x, (1, 1)), [(3, 0)]),
    (lambda x: x[2:2].sum(0) + 1, [(3, 4)]),
    (lambda x, y: functional.mse_loss(x, y), [(0, 4), (0, 4)]),
]


class NoElements(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(tensors)
        return tuple(function(*(next(given) for _ in shapes)) for function, shapes in NO_ELEMENTS)


def test_extents_of_zero() -> None:
    module = NoElements()
    inputs = tuple(torch.randn(shape) for _, shapes in NO_ELEMENTS for shape in shapes)
    compiled = lowerkit.compile(module, inputs)
    for number, (result, wanted) in enumerate(zip(compiled(*inputs), module(*inputs), strict=True)):
        np.testing.assert_allclose(result, wanted.numpy(), rtol=2e-5, atol=2e-5, err_msg=f"output {number}")


def test_attention_to_any_number_of_keys() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                functional.scaled_dot_product_attention(q, k, k),
                functional.scaled_dot_product_attention(q, k, k, is_causal=True),
                (q @ k.mT * 0.3).softmax(-1) @ k,
            )

    module = Attention()
    dims: Any = ({}, {2: Dim("keys", min=0, max=64)})
    compiled = lowerkit.compile(module, (torch.randn(2, 2, 4, 8), torch.randn(2, 2, 5, 8)), dynamic_shapes=dims)
    for keys in (0, 1, 5, 31):
        assert_as_eager(compiled, module, torch.randn(2, 2, 4, 8), torch.randn(2, 2, keys, 8))


class Specials(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attended = functional.scaled_dot_product_attention(x[None], x[None], x[None])
        return torch.argmax(x), torch.argmin(x, keepdim=True), torch.argmax(x, 1), torch.max(x, 0)[1], attended


@pytest.fixture(scope="module")
def specials() -> Compiled:
    every = {0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO}
    return lowerkit.compile(Specials(), (torch.ones(2, 3, 4),), dynamic_shapes=(every,))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_where_every_extent_is_open(special: float, specials: Compiled) -> None:
    """Among the keys too: a row whose scores are all -inf is zeros times its values.

    Eager's kernel takes a row of NaN for such a one, and is not followed.
    """
    for shape in ((2, 3, 4), (3, 5, 2), (4, 2, 7)):
        x = torch.rand(shape) + 1
        x[1, :, 1] = special
        *positions, attended = zip(specials(x), Specials()(x), strict=True)
        for have, want in positions:
            np.testing.assert_array_equal(have, want.numpy())
        if not np.isnan(special):
            np.testing.assert_allclose(attended[0], attended[1].numpy(), rtol=2e-5)


class Broadcast(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.broadcast_tensors(x, n, flag), *torch.broadcast_tensors(flag[0], x[:, :1]))


def test_tensors_of_unlike_types_broadcast() -> None:
    module = Broadcast()
    x, n, flag = torch.rand(2, 3, 1), torch.arange(3)[:, None], torch.tensor([True, False])
    spec = ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO})
    compiled = lowerkit.compile(module, (x, n, flag), dynamic_shapes=spec)
    for shape in ((2, 3, 2), (4, 2, 5), (3, 7, 4)):
        inputs = (torch.rand(shape[:2])[..., None], torch.arange(shape[1])[:, None], torch.arange(shape[2]) % 2 == 0)
        for have, want in zip(compiled(*inputs), module(*inputs), strict=True):
            np.testing.assert_array_equal(have, want.numpy(), strict=True)


class SafeSoftmax(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._safe_softmax(x, 1), torch.ops.aten._safe_softmax(x, -1, torch.float64)


@pytest.mark.parametrize("extents", [None, ({0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO},)])
def test_a_softmax_of_rows_that_are_masked(extents: Any) -> None:
    x = torch.randn(3, 4, 5)
    x[1, :, 2], x[0, 0, :], x[2, 2, 2] = -torch.inf, -torch.inf, torch.nan
    for have, want in zip(
        lowerkit.compile(SafeSoftmax(), (x,), dynamic_shapes=extents)(x), SafeSoftmax()(x), strict=True
    ):
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-6)


class Places(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *functional.max_pool2d(x, 2, return_indices=True),
            *functional.max_pool2d(x, 3, 2, 1, return_indices=True),
            *functional.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 1), return_indices=True),
            *functional.max_pool1d(x[:, :, 1], 3, 2, 1, return_indices=True),
            *functional.max_pool2d(x, 3, 3, 1, ceil_mode=True, return_indices=True),
        )


def test_places_of_maxima() -> None:
    """Of equals the first, of NaN the last, and -inf has a place too."""
    module = Places()
    spec = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    compiled = lowerkit.compile(module, (torch.randn(2, 3, 8, 9),), dynamic_shapes=spec)
    for shape in ((2, 3, 8, 9), (4, 3, 11, 12), (3, 3, 5, 6)):  # whether the last window of ceil_mode counts is a guard
        x = torch.randn(shape)
        x[0, 0, 1, 1], x[0, 0, 2, 2], x[0, 1], x[0, 2] = torch.nan, torch.nan, -torch.inf, 1
        for have, want in zip(compiled(x), module(x), strict=True):
            np.testing.assert_array_equal(have, want.numpy())


def test_what_is_converted_wrongly_is_refused() -> None:
    x, filters = torch.randn(2, 3, 8, 9), torch.randn(3, 2, 3, 3)

    class Filtered(nn.Module):
        def forward(self, x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
            return functional.conv_transpose2d(x, filters, stride=2)

    with pytest.raises(UnsupportedError, match="conv_transpose2d"):
        lowerkit.compile(Filtered(), (x, filters), dynamic_shapes=({}, {2: Dim.AUTO, 3: Dim.AUTO}))


class RowsOfOneSize(nn.Module):
    """The extents that the norm fixes stay open in the exported program: a guard holds them."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(torch.ops.aten._chunk_cat([x, y], 0, 3), [3, 837])


def test_norms_of_rows_whose_extent_a_guard_holds() -> None:
    """torch-mlir's conversion adds one element after the other: 34 times eager's distance from float64."""
    x, y = torch.randn(3, 400), torch.randn(3, 437)
    opened = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(RowsOfOneSize(), (x, y), dynamic_shapes=(opened, opened), strict=False)
    (ours,) = lowerkit.compile(exported).session.run(x, y)
    wanted = RowsOfOneSize()(x.double(), y.double()).numpy()
    eager = np.abs(RowsOfOneSize()(x, y).numpy() - wanted).max()
    assert np.abs(ours - wanted).max() <= 4 * eager
    with pytest.raises(RuntimeFault, match="LK8004"):
        lowerkit.compile(exported).session.run(x, torch.randn(3, 438))
