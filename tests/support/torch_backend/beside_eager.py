"""For tests of ``torch.compile(backend="lowerkit")``: a run beside eager, and how often something was compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

Tensors = tuple[torch.Tensor, ...]


def compiled(function: Any, *, fullgraph: bool = False, **options: Any) -> Any:
    """``function`` by lowerkit; whatever was compiled before is forgotten."""
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend="lowerkit", fullgraph=fullgraph, options=options or None)


def programs() -> int:
    """How many programs were compiled since :func:`compiled`."""
    return counters["lowerkit"]["programs"]


def graphs() -> int:
    """How many graphs were compiled since :func:`compiled`, those of changed parameters included."""
    return counters["lowerkit"]["graphs"]


def assert_same(actual: Any, expected: Any, exact: Any = None) -> None:
    """Structures, dtypes, shapes and strides are equal; values are as near to ``exact`` as eager's, within rounding."""
    if is_dataclass(expected):
        assert type(actual) is type(expected)
        actual, expected = vars(actual), vars(expected)
    found, found_spec = pytree.tree_flatten(actual)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert found_spec == wanted_spec
    wide = pytree.tree_leaves(exact) if exact is not None else wanted
    for one, other, third in zip(found, wanted, wide, strict=True):
        if not isinstance(other, torch.Tensor):
            assert type(one) is type(other) and one == other
            continue
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        significant = [axis for axis, extent in enumerate(other.shape) if extent > 1] if other.numel() else []
        assert [one.stride(axis) for axis in significant] == [other.stride(axis) for axis in significant]
        assert one.requires_grad == other.requires_grad
        if exact is None:
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            bound = 4 * (other.double() - third).abs().max() + 4 * torch.finfo(other.dtype).eps * third.abs().max()
            assert (one.double() - third).abs().max() <= bound


def assert_as_eager(function: Callable[..., Any], *inputs: Any, calls: int = 1, **options: Any) -> None:
    """Both see equal inputs of their own and leave them equal, call after call."""
    fast = compiled(function, **options)
    ours, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    for _ in range(calls):
        assert_same(fast(*ours), function(*theirs))
        assert_same(ours, theirs)
