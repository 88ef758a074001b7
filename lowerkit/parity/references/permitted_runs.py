"""Runs of eager that do what a permission lets a target do: for ``tf32``, products of f32 factors of 11 bits.

Factors are cut (what tensor cores do with bits that they do not look at), rounded to the nearest, and rounded up or
down at random, the nearer neighbour with more probability: a target may do any of it. Sums stay those of eager.
"""

# torch names overloads in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowerkit.capture.torch_export.operators import aten
from lowerkit.dialect.reference.factors import TF32_BITS, round_significand
from lowerkit.parity.references.higher_order import run_higher_order, run_parts

T = TypeVar("T")
_Rounding = Literal["down", "nearest", "random"]
_RANDOM_RUNS = 4


class RoundedFactors(TorchDispatchMode):
    """Rounds the f32 factors of products to ``bits`` bits of significand."""

    supports_higher_order_operators = True

    def __init__(self, bits: int, rounding: _Rounding, seed: int = 0) -> None:
        super().__init__()
        self.bits = bits
        self.rounding: _Rounding = rounding
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one op."""
        given = dict(kwargs or {})
        if isinstance(func, torch._ops.HigherOrderOperator):
            return run_higher_order(self, func, args, given)
        if func in _FACTORS:
            args = [self.rounded(one) if place in _FACTORS[func] else one for place, one in enumerate(args)]
        elif func in _ATTENTION and args[0].dtype == torch.float32:
            return self.attention(func, args, given)
        else:
            found = run_parts(self, func, args, given)
            if found is not NotImplemented:
                return found
        return func(*args, **given)

    def rounded(self, value: Any) -> Any:
        """Returns a factor with fewer bits; what is no f32 tensor as it is."""
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        plain = value.detach().contiguous()
        if self.rounding != "random":
            return torch.from_numpy(round_significand(plain.numpy(), self.bits, self.rounding))
        down = torch.from_numpy(round_significand(plain.numpy(), self.bits, "down"))
        # The next value away from zero, one unit of what was kept further; denormals have the unit of the smallest.
        exponent = torch.frexp(down)[1].clamp(min=-125)
        step = torch.ldexp(torch.ones_like(down), exponent - self.bits).copysign(plain)
        share = torch.where(torch.isfinite(plain), ((plain - down) / step).abs(), 0.0)
        up = down + step
        chosen = torch.rand(plain.shape, generator=self.generator) < share
        return torch.where(chosen & torch.isfinite(up), up, down)

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Returns the product of the rounded factors."""
        return torch.matmul(self.rounded(left), self.rounded(right))

    def attention(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs attention as two products with a softmax between, so that the weights are factors too."""
        query, key, value, *_ = args
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        scale, mask = kwargs.get("scale"), kwargs.get("attn_mask")
        scores = self.product(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if (len(args) > 4 and args[4]) or kwargs.get("is_causal"):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        found = self.product(torch.nan_to_num(scores.softmax(-1)), value)
        return (found, *func(*args, **kwargs)[1:])


_FACTORS: dict[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.dot.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.addmv.default: (1, 2),
    aten.convolution.default: (0, 1),
}
_ATTENTION = frozenset({aten._scaled_dot_product_flash_attention_for_cpu.default})


def permitted_runs(names: Collection[str], run: Callable[[], T]) -> list[T]:
    """Returns what ``run``, which computes with PyTorch, gives in each way that the permissions allow."""
    found: list[T] = []
    if "tf32" in names:
        random = (RoundedFactors(TF32_BITS, "random", seed) for seed in range(_RANDOM_RUNS))
        for mode in (RoundedFactors(TF32_BITS, "down"), RoundedFactors(TF32_BITS, "nearest"), *random):
            with mode:
                found.append(run())
    return found
