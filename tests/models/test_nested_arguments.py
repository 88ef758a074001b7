"""Arguments and results in dicts, lists, tuples and classes, positional and by keyword, as the model has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import lowerkit
from lowerkit.errors import RuntimeFault


class Pair(NamedTuple):
    first: torch.Tensor
    number: int


class Nested(nn.Module):
    def forward(
        self, x: torch.Tensor, state: dict[str, Any], scale: float = 2.0, *, mask: Any = None, extra: Any = None
    ) -> dict[str, Any]:
        h, (c, d) = state["h"], state["cd"]
        y = (x @ h + c - d) * scale
        if mask is not None:
            y = y * mask
        if extra is not None:
            y = y + extra[0] * extra[1]["deep"]
        return {"y": y, "parts": [c * 1, (d + 1, None)], "pair": Pair(y + 1, 3)}


def arguments(seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(seed)
    state = {"h": torch.randn(4, 5), "cd": (torch.randn(5), torch.randn(5))}
    extra = [torch.randn(5), {"deep": torch.randn(5)}]
    return (torch.randn(3, 4), state), {"mask": torch.randn(3, 5), "extra": extra}


@pytest.fixture(scope="module")
def compiled() -> Any:
    positional, named = arguments()
    return lowerkit.compile(Nested().eval(), positional, kwargs=named)


def assert_equal(actual: Any, expected: Any) -> None:
    assert isinstance(actual, dict)
    assert list(actual) == list(expected)
    assert isinstance(actual["parts"][1], tuple)
    assert actual["parts"][1][1] is None
    assert actual["pair"]["number"] == 3
    ours = [actual["y"], actual["parts"][0], actual["parts"][1][0], actual["pair"]["first"]]
    theirs = [expected["y"], expected["parts"][0], expected["parts"][1][0], expected["pair"].first]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1.3e-6, atol=1e-5)


def test_called_as_the_model(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.lk")
    for call in (compiled, lowerkit.load(tmp_path / "model.lk")):
        for seed in (1, 2):
            (x, state), named = arguments(seed)
            expected = Nested()(x, state, **named)
            assert_equal(call(x, state, **named), expected)
            assert_equal(call(x, state=state, **named), expected)
            assert_equal(call(x, dict(reversed(state.items())), **named), expected)


def test_called_with_a_flat_list(compiled: Any) -> None:
    positional, named = arguments(3)
    flat = [leaf for leaf in pytree.tree_leaves((positional, named)) if isinstance(leaf, torch.Tensor)]
    names = [spec.name for spec in compiled.program.signature.inputs]
    expected = Nested()(*positional, **named)
    assert_equal(compiled(*flat), expected)
    assert_equal(compiled(**dict(zip(names, flat, strict=True))), expected)
    (x, state), rest = positional, {name: value for name, value in zip(names, flat, strict=True) if name[:5] != "state"}
    del rest["x"]
    assert_equal(compiled(x, state, **rest), expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state, named: state.pop("h"), r"state has the keys \['cd'\], expected \['cd', 'h'\]"),
        (lambda state, named: state.update(cd=(state["h"],)), r"state\['cd'\] is 1 items, expected a tuple of 2"),
        (lambda state, named: state.update(cd=3), r"state\['cd'\] is int, expected a tuple of 2"),
        (lambda state, named: named.update(extra=[named["extra"][0], {}]), r"extra\[1\] has the keys \[\]"),
        (lambda state, named: named.update(other=[1]), "the model has no input 'other'"),
        (lambda state, named: named.pop("mask"), "'mask' is missing"),
    ],
)
def test_nests_that_do_not_fit(compiled: Any, change: Any, reason: str) -> None:
    (x, state), named = arguments(4)
    change(state, named)
    with pytest.raises(RuntimeFault, match=reason) as caught:
        compiled(x, state, **named)
    assert caught.value.code == "LK8004"


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return x * options["scale"] + options["bias"]


def test_constants_among_the_arguments_must_be_those_of_capture() -> None:
    compiled = lowerkit.compile(Scaled().eval(), (torch.ones(3), {"scale": 4, "bias": torch.ones(3)}))
    x = torch.randn(3)
    bias = torch.randn(3)
    np.testing.assert_allclose(compiled(x, {"scale": 4, "bias": bias}), (x * 4 + bias).numpy(), rtol=1e-6)
    with pytest.raises(RuntimeFault, match=r"options\['scale'\] is 5, but the model was compiled for 4"):
        compiled(x, {"scale": 5, "bias": bias})


def test_scripts_with_lists_and_tuples() -> None:
    script = torch.jit.script(Lists().eval())
    pair, items = (torch.randn(3), torch.randn(3)), [torch.randn(3), torch.randn(3)]
    compiled = lowerkit.compile(script, (pair, items))
    expected = script(pair, items)
    actual = compiled(pair, items)
    assert set(actual) == {"sum", "product"}
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value.numpy(), rtol=1e-6)


class Lists(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], items: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": pair[0] + items[0], "product": pair[1] * items[1]}


def test_a_models_output_class() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    class Outputs(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x * 3, x + 1))

    x = torch.randn(4)
    actual = lowerkit.compile(Outputs().eval(), (x,))(x)
    np.testing.assert_array_equal(actual["last_hidden_state"], (x * 2).numpy())
    np.testing.assert_array_equal(actual["hidden_states"][1], (x + 1).numpy())
