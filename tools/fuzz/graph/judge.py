"""Whether outputs are right: equal where the result is exact, within what rounding explains where it is not.

What rounding explains is measured: eager runs again with the result of every op that rounds moved by up to three units
in the last place (``Rounding``). An element whose integer, truth or class (NaN, infinity) changes under it hangs on
rounding and is not judged; a finite one may be off by twelve times what it moved, and by a few units in the last place
of the largest element. What misses eager by more is held, element by element, against the framework's other answers:
the same function in float64, and what PyTorch computes on other paths (``graph.witnesses``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_UNITS = 3.0
_ALLOWED = 12.0
_UNITS_OF_LARGEST = 8.0
_EXACT = {
    "clone", "copy", "copy_", "_to_copy", "cat", "stack", "index", "index_select", "gather", "scatter", "where",
    "neg", "abs",
    "relu", "max", "min", "amax", "amin", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "hardtanh", "sort",
    "topk", "argsort", "floor", "ceil", "round", "trunc", "sign", "sgn", "fill", "fill_", "zeros", "ones", "full",
    "arange",
    "zeros_like", "ones_like", "full_like", "masked_fill", "masked_fill_", "constant_pad_nd", "flip", "roll", "repeat",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "tril", "triu", "im2col", "unfold", "embedding", "cummax",
    "cummin", "zero_", "relu_", "neg_", "clamp_", "index_put_", "index_put", "index_copy", "index_copy_",
    "select_scatter",
    "slice_scatter", "index_fill", "fmod", "remainder", "isnan", "take", "put", "median", "kthvalue", "mode",
    "nextafter",
    "threshold", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "pixel_shuffle",
    "channel_shuffle", "adaptive_max_pool2d", "adaptive_max_pool3d", "fmax", "fmin", "copysign", "tril_", "triu_",
    "frac", "unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "detach_",
    "diag_embed", "new_zeros", "new_full", "scalar_tensor", "lift_fresh_copy", "set_", "aminmax", "masked_scatter",
}  # fmt: skip

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv")

Outputs = list[torch.Tensor]


class Rounding(TorchDispatchMode):
    """Moves every rounded floating result by up to ``_UNITS`` units in the last place.

    A product of matrices that leaves the range in the midst of its sum is infinite in one order of summation, finite
    or NaN in another: such an element is drawn anew each time, so that nothing hangs on it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        view = any(r.alias_info is not None for r in schema.returns) and not schema.is_mutable
        if view or schema.name.removeprefix("aten::") in _EXACT:
            return result
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                self.move(value)
        if schema.name.removeprefix("aten::") in _PRODUCTS and result.is_floating_point():
            self.leave_range(result, *args[-2:])
        return result

    def leave_range(self, result: torch.Tensor, lhs: torch.Tensor, rhs: torch.Tensor) -> None:
        """Draws the elements anew whose finite terms together exceed the largest number, in place."""
        lhs, rhs = (torch.nan_to_num(v.double().abs(), 0.0, 0.0, 0.0) for v in (lhs, rhs))
        beyond = (lhs @ rhs > torch.finfo(result.dtype).max).expand(result.shape)
        if bool(beyond.any()):
            drawn = torch.randint(0, 3, result.shape, generator=self.generator)
            result[beyond] = torch.tensor([math.inf, -math.inf, math.nan], dtype=result.dtype)[drawn][beyond]

    def move(self, value: torch.Tensor) -> None:
        """In place."""
        unit = torch.finfo(value.dtype).eps
        drawn = torch.rand(value.shape, generator=self.generator) * 2 - 1
        value.copy_(value.double() * (1 + drawn.double() * _UNITS * unit / 2))


def run(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Outputs:
    """Eager's outputs, copied."""
    with torch.no_grad():
        return [value.clone().contiguous() for value in pytree.tree_leaves(module(*inputs))]


def run_moved(module: torch.nn.Module, inputs: Sequence[torch.Tensor], seed: int) -> Outputs:
    """Eager's outputs with every rounding moved, inputs and weights included."""
    rounding = Rounding(seed)
    with torch.no_grad():
        moved = [value.clone() for value in inputs]
        for value in [*moved, *module.buffers()]:
            if value.is_floating_point() and value.numel() and bool((value != value.round()).any()):
                rounding.move(value)
        with rounding:
            outputs = module(*moved)
        return [value.clone().contiguous() for value in pytree.tree_leaves(outputs)]


def misses(
    ours: Sequence[torch.Tensor],
    eager: Outputs,
    moved: Callable[[int], list[Outputs]],
    witnesses: Sequence[Callable[[], Outputs]],
) -> list[str]:
    """What is wrong with ``ours``, a line for each output; empty if nothing.

    Args:
        ours: our outputs.
        eager: eager's.
        moved: so many runs with roundings moved.
        witnesses: other runs of the function by PyTorch.
    """
    if len(ours) != len(eager):
        return [f"{len(ours)} outputs, eager has {len(eager)}"]
    few = moved(4)
    suspects = [place for place in range(len(eager)) if _miss(ours[place], eager[place], [m[place] for m in few])]
    if not suspects:
        return []
    many = moved(40)
    others: list[Outputs] = []
    for witness in witnesses:
        try:
            others.append(witness())
        except Exception:
            continue
    found: list[str] = []
    for place in suspects:
        spread = [m[place] for m in many]
        floating = eager[place].is_floating_point()
        found_so = [other[place] for other in others if floating or other[place].dtype == eager[place].dtype]
        answers = [answer.to(eager[place].dtype) for answer in found_so]
        miss = _miss(ours[place], eager[place], spread, answers)
        if miss:
            found.append(f"output {place}: {miss}")
    return found


def _miss(
    ours: torch.Tensor, eager: torch.Tensor, moved: list[torch.Tensor], answers: Sequence[torch.Tensor] = ()
) -> str:
    """What is wrong with one output, or nothing. ``moved`` spreads around ``eager``; an answer counts as eager does."""
    if ours.dtype != eager.dtype or tuple(ours.shape) != tuple(eager.shape):
        return f"{ours.dtype}{list(ours.shape)}, eager {eager.dtype}{list(eager.shape)}"
    if not eager.numel():
        return ""
    if not eager.is_floating_point():
        stable = torch.ones_like(eager, dtype=torch.bool)
        for other in moved:
            stable &= other == eager
        wrong = stable & (ours != eager)
        for answer in answers:  # a difference that a half type rounds to zero is a truth of another value
            if answer.shape == eager.shape:
                wrong &= ours != answer
        return _text(wrong, ours, eager, None)
    c = eager.double()
    spread = torch.zeros_like(c)
    stable = torch.ones_like(c, dtype=torch.bool)
    for other in moved:
        n = other.double()
        stable &= _class(n) == _class(c)
        spread = torch.maximum(spread, torch.nan_to_num((n - c).abs(), 0.0, 0.0, 0.0))
    wrong, budget = _off(ours, eager, spread)
    for answer in answers:
        if answer.shape == eager.shape:
            wrong &= _off(ours, answer, spread)[0]
    return _text(stable & wrong, ours, eager, budget)


def _off(ours: torch.Tensor, wanted: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are not ``wanted``'s, and how far off each may be."""
    kind = torch.finfo(wanted.dtype)
    o, w = ours.double(), wanted.double()
    finite = torch.isfinite(w)
    largest = w[finite].abs().max() if bool(finite.any()) else torch.zeros(())
    budget = _ALLOWED * spread + _UNITS_OF_LARGEST * kind.eps * largest + 4 * kind.eps * w.abs() + 4 * kind.tiny
    near_limit = (o.abs() > 0.98 * kind.max) & (w.abs() > 0.98 * kind.max) & (o.sign() == w.sign())
    same_class = _class(o) == _class(w)
    return ~near_limit & (~same_class | (finite & ((o - w).abs() > budget))), budget


def _class(value: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 and 3 the infinities."""
    return torch.isnan(value) * 1 + torch.isposinf(value) * 2 + torch.isneginf(value) * 3


def _text(wrong: torch.Tensor, ours: torch.Tensor, wanted: torch.Tensor, budget: torch.Tensor | None) -> str:
    count = int(wrong.sum())
    if not count:
        return ""
    where = tuple(np.argwhere(wrong.numpy())[0].tolist())
    allowed = "" if budget is None else f" (allowed {float(budget[where]):.2e})"
    return (
        f"{count} of {wanted.numel()} wrong, {list(where)}: {ours[where].item()}, eager {wanted[where].item()}{allowed}"
    )
