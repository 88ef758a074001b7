"""TorchScript's ``prim::If`` and ``prim::Loop`` as ``torch.cond`` and ``torch.while_loop``, where data decides.

TorchScript counts and decides with Python numbers. In a loop whose course depends on data these are tensors of rank 0
here: numbers that a loop carries, and what is computed from them. Where the course is known when the model is
captured, branches are taken and loops written out instead.
"""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

NUMBER_OPS: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
}
"""TorchScript's arithmetic on numbers, as Python's on numbers and tensors alike."""

_NUMBERS = ("int", "float", "bool", "Scalar")


def number_op(node: torch._C.Node) -> Callable[..., Any] | None:
    """Returns what computes a node that takes numbers, or a tensor and a number; None for any other node.

    TorchScript names another overload for each of these, and a number that a loop carries is a tensor.
    """
    found = NUMBER_OPS.get(node.kind())
    first, *others = (str(value.type()) for value in node.inputs())
    if found is None or any(kind not in _NUMBERS for kind in others) or first not in (*_NUMBERS, "Tensor"):
        return None
    scale = list(node.inputs())[2:]  # add and sub of a tensor take a factor, which is nearly always one
    factors: list[Any] = [value.toIValue() if value.node().kind() == "prim::Constant" else None for value in scale]
    return found if all(factor == 1 for factor in factors) else None


def logical_not(value: Any) -> Any:
    """``not`` of a bool, or of a bool tensor."""
    return torch.logical_not(value) if isinstance(value, torch.Tensor) else not value


def run_branch(
    predicate: Any, then: fx.GraphModule, otherwise: fx.GraphModule, arguments: Sequence[Any], kinds: Sequence[str]
) -> Any:
    """Runs one of two bodies: the one that is known to be taken, else both as ``torch.cond``.

    ``kinds`` are TorchScript's types of the results.
    """
    if not isinstance(predicate, torch.Tensor):
        return (then if predicate else otherwise)(*arguments)
    places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]

    def called(body: fx.GraphModule) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            given = list(arguments)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            found = body(*given)
            several = isinstance(found, (tuple, list))
            return tuple(map(_tensor, found, kinds)) if several else _tensor(found, kinds[0])

        return call

    return torch.cond(
        _decision(predicate), called(then), called(otherwise), tuple(arguments[place] for place in places)
    )


def run_loop(body: fx.GraphModule, turns: Any, going: Any, kinds: Sequence[str], *arguments: Any) -> tuple[Any, ...]:
    """Runs ``body(*shared, turn, *carried) -> (going, *carried)`` at most ``turns`` times, as long as it says so.

    ``arguments`` are the carried values, whose TorchScript types are ``kinds``, then the shared ones.
    """
    carried, shared = list(map(_tensor, arguments[: len(kinds)], kinds)), arguments[len(kinds) :]

    def unfinished(turn: torch.Tensor, going: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return (turn < turns) & going

    def next_turn(turn: torch.Tensor, going: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = body(*shared, turn, *values)
        after = found if isinstance(found, (tuple, list)) else (found,)
        return (
            turn + 1,
            _decision(after[0]).clone(),
            *(_tensor(*pair).clone() for pair in zip(after[1:], kinds, strict=True)),
        )

    start = (torch.zeros((), dtype=torch.int64), _decision(going), *(value.clone() for value in carried))
    return tuple(torch.while_loop(unfinished, next_turn, start)[2:])


_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}


def _tensor(value: Any, kind: str) -> torch.Tensor:
    """A number as a tensor of the type that TorchScript knows it by: its bool constants may come as ints."""
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=_DTYPES.get(kind))


def _decision(value: Any) -> torch.Tensor:
    """A bool of rank 0: TorchScript takes any tensor of one element for one."""
    if not isinstance(value, torch.Tensor):
        return torch.full((), bool(value))
    return value.reshape(()) if value.dtype == torch.bool else (value != 0).reshape(())
