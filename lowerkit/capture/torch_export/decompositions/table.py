"""Ops that are spelled out at capture, by PyTorch's own decompositions or by those below.

They are those that no rule of a pass takes. What one takes stays whole: a decomposition hides from passes what an op
is.
"""

# torch tells ops apart and registers decompositions under private names; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch.export import default_decompositions

from lowerkit.capture.torch_export.decompositions.own_table import OWN_BY_NAME, OWN_DECOMPOSITIONS
from lowerkit.passes.registry import ops_with_rules

_RANDOM = torch.Tag.nondeterministic_seeded

ALWAYS = frozenset(
    {
        # Their rules take an op of one more dim, or what is written with them.
        *("aten.adaptive_max_pool1d.default", "aten.max_pool1d_with_indices.default"),
        *("aten.clamp_max.Tensor", "aten.clamp_min.Tensor"),
        *("aten.xlogy.Tensor", "aten.gelu_backward.default", "aten.leaky_relu_backward.default"),
        *("aten.log_sigmoid_backward.default", "aten.softplus_backward.default"),
        *(str(op) for op in OWN_DECOMPOSITIONS),
    }
)
"""Spelled out though a rule takes them, by the text of the overload."""
_BY_REFERENCE = frozenset({"aten.conj_physical.default", "aten.trace.default"})


def is_spelled_out(target: torch._ops.OpOverload) -> bool:
    """Whether capture writes an op out of others: no rule of a pass takes it, or :data:`ALWAYS` has it.

    What is random stays, and is refused by its name.
    """
    name = "torch." + str(target).removesuffix(".default")
    return str(target) in ALWAYS or (name not in ops_with_rules() and _RANDOM not in target.tags)


def decomposition_of(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Returns a function that computes ``target`` out of other ops; None where there is none."""
    own = OWN_DECOMPOSITIONS.get(target) or OWN_BY_NAME.get(str(target))
    if own is not None:
        return own
    default = _default_table()
    if target in default:
        return default[target]
    further = global_decomposition_table["post_autograd"].get(target)
    # PyTorch's references end in ops of their own (prims), which say less to a user than the name of the op.
    if further is not None and (str(target) in _BY_REFERENCE or not further.__module__.startswith("torch._refs")):
        return further
    return target.decompose if target._can_decompose() else None


@contextmanager
def left_to(table: Mapping[Any, Callable[..., Any]]) -> Generator[None]:
    """While it lasts, PyTorch decomposes the ops of ``table`` by it alone.

    For a few it has a decomposition in the place of the gradient's kernel, which tracing calls before it asks any
    table: that of ``multi_margin_loss`` has another shape than eager, and counts NaN.
    """
    keys = torch._C.DispatchKey
    first = {op for op in table if isinstance(op, torch._ops.OpOverload) and keys.Autograd in op.py_kernels}
    kernels = {op: dict(op.py_kernels) for op in first}
    for op in first:
        del op.py_kernels[keys.Autograd]
        if keys.CompositeImplicitAutograd in op.py_kernels:
            # torch.export keeps an op that has a decomposition in Python alone, whatever the table says of it.
            for key in (keys.AutogradCPU, keys.AutogradMeta):
                op.py_kernels[key] = table[op]
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, own in kernels.items():
            op.py_kernels.clear()
            op.py_kernels.update(own)
            op._dispatch_cache.clear()


@cache
def _default_table() -> Any:
    """PyTorch's table, once: the first look-up in a fresh one goes through its whole registry."""
    return default_decompositions()
