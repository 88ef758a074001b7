"""A name never gets two values: folded constants, lifted tensors, buffers of the user and states, however often traced.

Each function here has masks and tables that are folded, and ops that are spelled out in one, two or three rounds, whose
own constants are folded in their turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.graph.importer import TensorBank
from lowerkit.capture.torch_export.graph.prepare import prepare
from lowerkit.parity.references.torch_nodes import float64_outputs
from lowerkit.program.weights import WeightStore
from tests.unit.capture.running import assert_same_as_eager

X = torch.linspace(-2, 2, 32).reshape(4, 8)
Function = Callable[[torch.Tensor], torch.Tensor]

SPELLED_OUT: Sequence[Function] = [
    lambda x: torch.mode(x.round(), 1).values,
    lambda x: torch.logcumsumexp(x, 1),
    lambda x: x.index_add(0, torch.tensor([0, 1]), x[:2]),
    lambda x: torch.cummax(x, 1).values,
    lambda x: torch.special.log_ndtr(x),
    lambda x: nn.functional.unfold(x[None, None], (2, 2)),
    lambda x: torch.xlogy(x.abs(), x.abs()),
]
FOLDED: Sequence[Function] = [
    lambda x: torch.where(torch.arange(8) >= 5, x, 0),
    lambda x: torch.where(torch.arange(8) == 3, x, 1),
    lambda x: torch.where(torch.arange(8) < 2, x, 2),
    lambda x: torch.where(torch.arange(4)[:, None] < torch.arange(8), x, 0),
    lambda x: torch.where(torch.arange(8) % 2 == 0, x, 3),
    lambda x: x + torch.arange(8),
    lambda x: x * torch.arange(8).to(torch.float32).cos(),
    lambda x: x + torch.ones(4, 8).tril(),
    lambda x: x + torch.tensor([1.0] * 7 + [4.0]),
]


class Listed(nn.Module):
    """Several functions of one input; buffers with the names that folded and lifted constants would like to have."""

    lifted_tensor_0: torch.Tensor
    folded_ge: torch.Tensor
    folded_lt: torch.Tensor

    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.functions = functions
        self.register_buffer("lifted_tensor_0", torch.full((8,), 5.0))
        self.register_buffer("folded_ge", torch.full((8,), 7.0), persistent=False)
        self.register_buffer("folded_lt", torch.full((8,), 9.0))
        self.folded_arange = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        own = self.folded_arange(x) + self.folded_ge + self.lifted_tensor_0 * self.folded_lt
        return [own, *(function(x) for function in self.functions)]


def assert_names_are_true(module: nn.Module) -> None:
    exported = torch.export.export(module, (X,), strict=False)
    names = [*exported.constants, *exported.state_dict]
    wanted = [value.detach().double() for value in module(X)]
    found = float64_outputs(prepare(exported), [X.numpy()], len(wanted))
    assert found is not None
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-4, atol=1e-4)
    assert [*exported.constants, *exported.state_dict] == names, "the user's program got constants of ours"


@pytest.mark.parametrize("place", range(3))
def test_masks_beside_what_is_spelled_out_in_several_rounds(place: int) -> None:
    assert_names_are_true(Listed([*FOLDED[:3], SPELLED_OUT[place], *FOLDED[3:]]).eval())


@pytest.mark.parametrize("seed", range(2))
def test_many_constants_in_random_order(seed: int) -> None:
    chosen = random.Random(seed)
    functions = [*chosen.choices(FOLDED, k=8), *chosen.choices(SPELLED_OUT, k=3)]
    chosen.shuffle(functions)
    assert_names_are_true(Listed(functions).eval())


def test_a_mask_beside_what_takes_two_rounds_is_imported_as_eager_computes_it() -> None:
    module = Listed([FOLDED[0], SPELLED_OUT[0], SPELLED_OUT[1], FOLDED[3]]).eval()
    assert_same_as_eager(capture(module, (X,)), [X.numpy()])


def test_a_state_keeps_its_name_and_a_constant_makes_way() -> None:
    class Counted(nn.Module):
        folded_arange: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("folded_arange", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.folded_arange.add_(1)
            return x * torch.arange(8) + self.folded_arange

    program = capture_exported(torch.export.export(Counted(), (X,)))
    assert [state.name for state in program.signature.states] == ["folded_arange"]
    assert not program.weights.get("folded_arange").any()
    assert any(np.array_equal(program.weights.get(name), np.arange(8)) for name in program.weights)


def test_a_view_that_negates_is_another_tensor() -> None:
    value = torch.tensor([1 + 2j, 3 + 4j])
    bank = TensorBank(WeightStore())
    assert bank.symbol(value.imag, "x") != bank.symbol(value.conj().imag, "x")


def test_reserved_names_are_given_to_nobody_else() -> None:
    weights = WeightStore()
    weights.reserve(["cache"])
    assert weights.unique_name("cache") == "cache.1"
    weights.add("cache", np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="exists already"):
        weights.add("cache", np.ones(2, np.float32))
