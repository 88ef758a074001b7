"""Eager runs that are as right as eager's own: what lies between them and it is rounding, and how much of it.

Vocabulary
    moved       a run on inputs that are off by one unit in the last place (:mod:`perturbed_inputs`).
    reordered   a run in which sums are taken in another order: the summed axis of products, convolutions, reductions,
                norms, softmax and attention is permuted at random. In exact arithmetic nothing changes.
    rounded     a run in which each op is computed in a wider type, and its result rounded up or down at random, the
                nearer neighbour with more probability (stochastic rounding). What can be represented stays.

The modes act below PyTorch's dispatcher: on modules, scripts, exported programs and single graphs alike.
"""

# torch names overloads in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from lowerkit.capture.torch_export.operators import aten
from lowerkit.parity.references.higher_order import run_higher_order, run_parts


class Reordering(TorchDispatchMode):
    """Takes sums in another order, drawn from ``seed``.

    Attributes:
        applied: whether there was a sum.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = np.random.default_rng(seed)
        self.applied = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one op."""
        rule = _REORDERED.get(func)
        if rule is not None:
            self.applied = True
            return rule(self.order, func, list(args), dict(kwargs or {}))
        found = run_parts(self, func, args, kwargs)
        return _run(self, func, args, kwargs) if found is NotImplemented else found

    def order(self, extent: int) -> torch.Tensor:
        """Returns a random permutation."""
        return torch.from_numpy(self.generator.permutation(extent))


class StochasticRounding(TorchDispatchMode):
    """Computes each op in a wider type and rounds up or down at random, drawn from ``seed``."""

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one op."""
        result = _run(self, func, args, kwargs)
        if (
            not isinstance(func, OpOverload)
            or func._schema.is_mutable
            or torch.Tag.nondeterministic_seeded in func.tags
        ):
            return result
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        kinds = {value.dtype for value in tree_leaves(result) if isinstance(value, torch.Tensor)} & _WIDER.keys()
        if len(kinds) != 1:
            return result
        narrow = kinds.pop()
        try:
            exact = func(*tree_map(_widened, args), **tree_map(_widened, dict(kwargs or {})))
        except Exception:  # an op of one element type only: its own rounding has to do
            return result
        leaves, spec = tree_flatten(result)
        wide = tree_leaves(exact)
        return tree_unflatten(
            [self.rounded(*pair, narrow) for pair in zip(leaves, wide, strict=True)]
            if len(wide) == len(leaves)
            else leaves,
            spec,
        )

    def rounded(self, value: Any, exact: Any, narrow: torch.dtype) -> Any:
        """Returns ``exact`` in the narrow type, up or down at random; ``value`` where that is no finite number."""
        if not isinstance(value, torch.Tensor) or value.dtype != narrow or value.shape != exact.shape:
            return value
        if exact.dtype != _WIDER[narrow]:
            return value
        nearest = exact.to(narrow)
        back = nearest.to(exact.dtype)
        toward = torch.where(exact > back, torch.inf, -torch.inf).to(narrow)
        other = torch.nextafter(nearest, toward)
        step = (other.to(exact.dtype) - back).abs()
        share = torch.where(step > 0, (exact - back).abs() / step, 0.0)
        drawn = torch.rand(exact.shape, generator=self.generator, dtype=torch.float64)
        chosen = torch.where(drawn < share, other, nearest)
        usable = torch.isfinite(value) & torch.isfinite(exact) & torch.isfinite(chosen)
        return torch.where(usable, chosen, value)


_WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    return value.to(_WIDER[value.dtype]) if isinstance(value, torch.Tensor) and value.dtype in _WIDER else value


def _run(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(func, HigherOrderOperator):
        return run_higher_order(mode, func, args, kwargs)
    return func(*args, **(kwargs or {}))


# Each rule permutes the axis that an op sums over, in all operands that have it.

_Order = Callable[[int], torch.Tensor]


def _product(first: int) -> Callable[..., Any]:
    """A rule for a product of ``args[first]`` and what follows: the last axis of one, the last but one of the next."""

    def rule(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        left, right = args[first], args[first + 1]
        places = order(left.shape[-1])
        args[first] = left.index_select(left.dim() - 1, places)
        args[first + 1] = right.index_select(max(right.dim() - 2, 0), places)
        return func(*args, **kwargs)

    return rule


def _convolution(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args[8] == 1:
        places = order(args[0].shape[1])
        args[0] = args[0].index_select(1, places)
        args[1] = args[1].index_select(0 if args[6] else 1, places)
    return func(*args, **kwargs)


def _reduction(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    axes = args[1] if len(args) > 1 and args[1] is not None and not isinstance(args[1], torch.dtype) else None
    for axis in axes or range(value.dim()):
        value = value.index_select(axis, order(value.shape[axis]))
    args[0] = value
    return func(*args, **kwargs)


def _softmax(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args[0].dim() == 0:
        return func(*args, **kwargs)
    places = order(args[0].shape[args[1]])
    args[0] = args[0].index_select(args[1], places)
    return func(*args, **kwargs).index_select(args[1], torch.argsort(places))


def _layer_norm(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args[1]) != 1:
        return func(*args, **kwargs)
    axis = args[0].dim() - 1
    places = order(args[0].shape[axis])
    args[0] = args[0].index_select(axis, places)
    args[2:4] = [None if value is None else value.index_select(0, places) for value in args[2:4]]
    result, *rest = func(*args, **kwargs)
    return (result.index_select(axis, torch.argsort(places)), *rest)


def _attention(order: _Order, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    query, key, value = args[:3]
    places = order(query.shape[-1])
    query, key = (each.index_select(each.dim() - 1, places) for each in (query, key))
    if not (len(args) > 4 and args[4]) and not kwargs.get("is_causal"):
        places = order(key.shape[-2])
        key, value = (each.index_select(each.dim() - 2, places) for each in (key, value))
        mask = kwargs.get("attn_mask")
        if mask is not None and mask.shape[-1] != 1:
            kwargs["attn_mask"] = mask.index_select(mask.dim() - 1, places)
    args[:3] = [query, key, value]
    return func(*args, **kwargs)


_REORDERED: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _product(0),
    aten.bmm.default: _product(0),
    aten.mv.default: _product(0),
    aten.dot.default: _product(0),
    aten.addmm.default: _product(1),
    aten.baddbmm.default: _product(1),
    aten.convolution.default: _convolution,
    aten.sum.default: _reduction,
    aten.sum.dim_IntList: _reduction,
    aten.mean.default: _reduction,
    aten.mean.dim: _reduction,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.native_layer_norm.default: _layer_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
