"""Moves, fills and numbers of the typed core, interpreted after raising, beside eager bit for bit.

Every rank up to three, extents of 0 and 1, static and open ones, in element types with and without a sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.pipeline import pass_context, run_passes, stage_passes
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.program import Program

DTYPES = (torch.float32, torch.uint8, torch.int8, torch.bool, torch.bfloat16)


class Moves(nn.Module):
    """What a tensor of any rank allows, then what it allows with a dim, with two and with three."""

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(moved for value in values for moved in self.moves(value))

    def moves(self, x: Tensor) -> list[Tensor]:
        found = [*self.of_any_rank(x), *(self.of_vectors(x) if x.dim() else [])]
        return found + (self.of_matrices(x) if x.dim() > 1 else [])

    def of_any_rank(self, x: Tensor) -> list[Tensor]:
        shapes = [x.flatten(), x.reshape(-1), x.squeeze(), x.unsqueeze(0), x.unsqueeze(-1), torch.atleast_3d(x)]
        repeats = [x.expand(2, *x.shape), x.repeat(2, *[3] * x.dim()), x.repeat_interleave(2), torch.roll(x, 4)]
        fills = [torch.zeros_like(x), torch.full_like(x, 1), x.new_full((2,), 3), x.new_zeros(2, 0)]
        return [*shapes, *repeats, *fills, torch.stack([x, x], -1)]

    def of_vectors(self, x: Tensor) -> list[Tensor]:
        slices = [x[:3], x[-1:], x[::2], x[1:], x[-2:], x[:-1], x.narrow(0, 0, min(1, x.shape[0]))]
        repeats = [x.tile(2), x.repeat_interleave(3, 0), torch.flip(x, [0]), torch.roll(x, -5, -1)]
        diagonals = [torch.diag_embed(x), torch.diag_embed(x, -1)]
        axes = [x.movedim(0, -1), x.swapaxes(0, -1), x.unflatten(-1, (-1, 1)), torch.cat([x, x], -1)]
        return [*slices, *repeats, *diagonals, *axes, functional.pad(x, (1, 2))]

    def of_matrices(self, x: Tensor) -> list[Tensor]:
        triangles = [torch.tril(x), torch.triu(x, 1), torch.triu(x, -1)]
        diagonals = [torch.diagonal(x), torch.diagonal(x, 1, 0, -1), torch.diagonal(x, -1)]
        turns = [torch.rot90(x), torch.fliplr(x), torch.roll(x, (1, 2), (0, 1)), x.transpose(0, 1).reshape(-1)]
        return [*triangles, *diagonals, *turns, x.flatten(0, 1), x.permute(-1, *range(x.dim() - 1))]


class Numbers(nn.Module):
    """What sizes make: ranges, fills and positions."""

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        (x,) = values
        rows, columns = x.shape
        ranges = [torch.arange(rows), torch.arange(1, columns, 2), torch.arange(rows, dtype=torch.float32)]
        fills = [x.new_full((rows,), columns), torch.full((columns,), rows // 2 - 3), torch.eye(rows, columns)]
        sizes = [torch.scalar_tensor(rows % 3), torch.tensor(-columns // 2 * rows), x[rows - 2], x[:, columns - 1]]
        return (*ranges, *fills, *sizes, x[1 : rows - 2, : columns - 2], functional.pad(x, (0, 1), value=-2.5))


def raised(module: nn.Module, values: tuple[Tensor, ...], extents: Sequence[dict[int, Any]] | None = None) -> Program:
    dims = None if extents is None else (tuple(extents),)
    program = capture_exported(torch.export.export(module, values, dynamic_shapes=dims, strict=False))
    run_passes(program, stage_passes("raised"), pass_context(program))
    return program


def assert_as_eager(program: Program, module: nn.Module, values: tuple[Tensor, ...]) -> None:
    given = [to_numpy(value.view(torch.int8) if value.dtype is torch.uint8 else value) for value in values]
    found = interpret(program.module, given, program.weights.get)
    for number, (one, expected) in enumerate(zip(found, module(*values), strict=True)):
        other = to_numpy(expected)
        assert (one.shape, one.tobytes()) == (other.shape, other.tobytes()), f"output {number}: {one}, eager {other}"


def drawn(shape: tuple[int, ...], *dtypes: torch.dtype) -> tuple[Tensor, ...]:
    numbers = torch.randint(-128, 256, shape, generator=torch.Generator().manual_seed(len(shape)))
    return tuple(numbers > 0 if dtype is torch.bool else numbers.to(dtype) for dtype in dtypes)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3,), (2, 3), (0, 3), (1, 2, 3)], ids=str)
def test_moves_of_static_extents(shape: tuple[int, ...]) -> None:
    values = drawn(shape, *DTYPES)
    assert_as_eager(raised(Moves(), values), Moves(), values)


@pytest.mark.parametrize("shapes", [[(6,), (4,), (9,)], [(5, 6), (4, 4), (9, 5)], [(4, 5, 6), (7, 4, 5)]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves_of_open_extents(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    values = drawn(shapes[0], dtype)
    extents = [{axis: Dim(f"d{axis}", min=4, max=99) for axis in range(len(shapes[0]))}] * len(values)
    program = raised(Moves(), values, extents)
    for shape in shapes:
        assert_as_eager(program, Moves(), drawn(shape, dtype))


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
def test_numbers_out_of_sizes(is_open: bool) -> None:
    extents = [{axis: Dim(f"d{axis}", min=6, max=99) for axis in range(2)}] if is_open else None
    program = raised(Numbers(), (torch.randn(8, 6),), extents)
    for shape in [(8, 6), (6, 9), (12, 7)] if is_open else [(8, 6)]:
        assert_as_eager(program, Numbers(), (torch.randn(shape),))
