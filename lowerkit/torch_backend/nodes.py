"""What kind of thing a node of an ATen graph is, and whose."""

# torch tells ops and their schemas apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.node_schemas import named_arguments
from lowerkit.program.locations import frames_of_trace, users_line
from lowerkit.torch_backend.sizes import is_size, is_symbolic

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


@dataclass(frozen=True)
class Refusal:
    """Why PyTorch runs a node: a code of the errors, and the reason in words; without a code it need not be said."""

    code: str
    reason: str


def is_number(node: fx.Node) -> bool:
    """Whether a node gives a number, where others give tensors."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def is_found_from_sizes(node: fx.Node) -> bool:
    """Whether a node gives a number that the sizes of the graph's inputs determine."""
    return is_number(node) and not free_unbacked_symbols(node.meta["val"])


def is_body(node: fx.Node) -> bool:
    """Whether a node names the body of control flow."""
    return node.op == "get_attr" and isinstance(getattr(node.graph.owning_module, str(node.target)), fx.GraphModule)


def is_view(node: fx.Node) -> bool:
    """Whether a node gives a view, or one of several views, of its first argument."""
    target = node.target
    if target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in target._schema.returns)


def has_order(node: fx.Node) -> bool:
    """Whether a node must run before and after others that it shares no value with."""
    return isinstance(node.target, torch._ops.OpOverload) and (node.is_impure(impure_random=False) or _is_random(node))


def refusal_at_sight(node: fx.Node) -> Refusal | None:
    """Returns why lowerkit is not even asked for a node; None where it is."""
    if node.op != "call_function" or node.target is operator.getitem or is_found_from_sizes(node):
        return None
    if is_number(node):
        return Refusal("LK4002", "a number that depends on data")
    if node.target is torch.ops.higher_order.with_effects:
        return Refusal("" if _is_check(node.args[1]) else "LK4001", "an effect beside its value")
    if _is_check(node.target):
        return Refusal("", "a check, which gives no value")
    if has_order(node):
        return Refusal("LK4001", "random numbers" if _is_random(node) else "an effect beside its value")
    numbers = [source for source in node.all_input_nodes if is_number(source) and is_symbolic(source.meta["val"])]
    if any(not takes_tensor(node, number) and not all(map(is_size, _given(number))) for number in numbers):
        return Refusal("LK4001", "a number that differs from call to call, and is no size")
    return Refusal("LK4001", "no value that is known before it runs") if node.meta.get("val") is None else None


def takes_tensor(node: fx.Node, number: fx.Node) -> bool:
    """Whether ``node`` takes ``number`` where its schema has a tensor, and nowhere else."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema.arguments
    given = [(schema[place], value) for place, value in enumerate(node.args) if number in _nodes_of(value)]
    given += [(entry, node.kwargs[entry.name]) for entry in schema if number in _nodes_of(node.kwargs.get(entry.name))]
    return bool(given) and all(value is number and str(entry.type) == "Tensor" for entry, value in given)


def _nodes_of(argument: Any) -> list[Any]:
    return pytree.tree_leaves(argument)


def describe(node: fx.Node) -> str:
    """Returns ``aten.foo.default at model.py:12``; a line of PyTorch's where none of the user's is known."""
    place = place_of(node)
    return f"{node.target}{f' at {place}' if place else ''}"


def place_of(node: fx.Node) -> str:
    """Returns ``file:line`` of a node, empty where it is not known."""
    trace = node.meta.get("stack_trace")
    frames = frames_of_trace(trace)
    return users_line(trace) or (f"{frames[-1][0]}:{frames[-1][1]}" if frames else "")


def _given(number: fx.Node) -> list[Any]:
    """The numbers of a call out of which one is computed."""
    if number.op != "call_function" or number.target is torch.ops.aten.sym_size.int:
        return [number.meta["val"]]
    return [value for source in number.all_input_nodes for value in _given(source) if is_symbolic(value)]


_CHECKS = frozenset(
    f"aten::{name}"
    for name in (
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_linalg_check_errors",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
)


def _is_check(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in _CHECKS


def _is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers; attention and recurrent layers do so only where they drop values."""
    assert isinstance(node.target, torch._ops.OpOverload), "the callers looked"
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = named_arguments(node)
    if given.get("train", True) is False:
        return False
    share = next((given[name] for name in ("dropout_p", "dropout") if name in given), None)
    return share is None or share != 0
