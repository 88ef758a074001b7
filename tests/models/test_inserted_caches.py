"""States that slices are written into, at fixed places and at places by data: what moves is what is new."""

# torch calls what an export must be told of a number private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from lowerkit.capture.capture import capture
from lowerkit.compiler import Compiled, CompileOptions, compile_program

TARGETS = {"cpu": None, "cuda:sm_90": "cuda-sim"}
LENGTH = 24


class Cache(nn.Module):
    """A cache of keys; ``how`` says in what way a token is written, and whether the old keys are read behind it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("keys", torch.zeros(1, 2, LENGTH, 8))
        self.keys: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        old = self.keys.clone() if self.how == "old keys" else None
        if self.how == "slice":
            self.keys[:, :, 3:4] = x
        elif self.how == "slice_scatter":
            self.keys.copy_(torch.slice_scatter(self.keys, x * 2, 2, 5, 6))
        elif self.how == "twice":
            self.keys[:, :, 3:4] = x
            self.keys[:, 1:, 4:5] = x[:, 1:] * 2
        else:
            place: Any = at[0].item()
            torch._check(place >= 0)
            torch._check(place < LENGTH)
            self.keys.narrow(2, place, 1).copy_(x)
        found = torch.tanh(self.keys).sum(-1)
        return found if old is None else found - old.sum(-1)


def compiled(module: nn.Module, target: str, *inputs: torch.Tensor, **how: Any) -> Compiled:
    options = CompileOptions(target, golden=False, device=TARGETS[target])
    return compile_program(capture(module, inputs, **how), options)


def state_bytes_copied(made: Compiled) -> int:
    program = made.parts.program
    return sum(
        step.kind == "copy" and any(program.buffers[each].kind == "state" for each in step.buffers)
        for step in program.steps
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["slice", "slice_scatter", "twice", "narrow", "old keys"])
def test_a_token_is_written_where_the_cache_lies(how: str, target: str) -> None:
    """Only where the old keys are read behind it is there a copy of the cache."""
    module = Cache(how)
    made = compiled(module, target, torch.randn(1, 2, 1, 8), torch.tensor([0]))
    assert (state_bytes_copied(made) > 0) == (how == "old keys")
    module.keys.zero_()
    generator = torch.Generator().manual_seed(1)
    for place in (0, 7, LENGTH - 1, 7):
        x, at = torch.randn(1, 2, 1, 8, generator=generator), torch.tensor([place])
        np.testing.assert_allclose(made.session.run(x, at)[0], module(x, at).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(made.session.state["keys"], module.keys.numpy())


class Prompt(nn.Module):
    """As many tokens as there are, at the end of a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(LENGTH, 8))
        self.keys: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys[LENGTH - x.shape[0] :] = x
        return self.keys.sum(0)


@pytest.mark.parametrize("target", TARGETS)
def test_as_many_tokens_as_there_are(target: str) -> None:
    module = Prompt()
    rows = Dim("rows", min=2, max=LENGTH - 1)
    made = compiled(module, target, torch.randn(4, 8), dynamic_shapes={"x": {0: rows}})
    assert state_bytes_copied(made) == 0
    module.keys.zero_()
    for count in (2, 5, LENGTH - 1, 3):
        x = torch.randn(count, 8, generator=torch.Generator().manual_seed(count))
        np.testing.assert_allclose(made.session.run(x)[0], module(x).numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(made.session.state["keys"], module.keys.numpy())


class Positions(nn.Module):
    """Positions behind those that were: an integer of the open extent is added to each."""

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = x.shape[0]
        return start + (2 * count - 3), torch.arange(count) * 3 + count + start


def test_integers_of_open_extents_are_no_plain_loops() -> None:
    rows = Dim("rows", min=2, max=50)
    shapes = {"x": {0: rows}, "start": None}
    made = compiled(Positions(), "cuda:sm_90", torch.zeros(4, 2), torch.tensor([7]), dynamic_shapes=shapes)
    assert "threads" not in {entry.family for entry in made.parts.ledger}
    for count in (2, 4, 33):
        x, start = torch.zeros(count, 2), torch.tensor([count + 1])
        for found, wanted in zip(made.session.run(x, start), Positions()(x, start), strict=True):
            np.testing.assert_array_equal(found, wanted.numpy())


class Temporaries(nn.Module):
    """One value is the base of two insertions and a result: none may see another's."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * 2
        first, second = z.clone(), z.clone()
        first[1:2], second[2:3] = y, y * 3
        return first + second, z


class Given(nn.Module):
    """The base is an input, or a weight: both stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(32.0).reshape(4, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.clone(), self.w.clone()
        first[:, 1], second[2:3] = y[0, :4], y
        return first, second, x + 1, self.w + 0


class Shifted(nn.Module):
    """A state moves down within itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(32.0).reshape(4, 8))
        self.rows: torch.Tensor

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.rows[1:] = self.rows[:-1].clone()
        self.rows[:1] = y
        return (self.rows + x,)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [Temporaries, Given, Shifted])
def test_what_is_read_besides_keeps_its_value(kind: type[nn.Module], target: str) -> None:
    module, generator = kind().eval(), torch.Generator().manual_seed(2)
    inputs = torch.randn(4, 8, generator=generator), torch.randn(1, 8, generator=generator)
    session = compiled(module, target, *inputs).session
    for _ in range(3):
        kept = [each.clone() for each in inputs]
        for found, wanted in zip(session.run(*inputs), module(*inputs), strict=True):
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-6)
        for before, after in zip(kept, inputs, strict=True):
            assert torch.equal(before, after)
