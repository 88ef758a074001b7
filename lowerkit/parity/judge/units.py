"""The verdict on one output of a cell: bits for integers and bools, units in the last place for floats.

A float passes if it is within ``TOLERANCE`` units of eager's, or if its error to the function computed in float64 is at
most twice eager's own or within that tolerance: so a value that is right where eager's is not, passes, and is listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = {torch.float64: 4.0, torch.float32: 4.0, torch.float16: 1.0, torch.bfloat16: 1.0}
"""Units in the last place."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with an output, or where ours alone is exact (``better``); both empty where it holds."""

    wrong: str = ""
    better: str = ""


def judge(ours: Tensor, eager: Tensor, exact: Tensor | None, *, zeros_alike: bool = False) -> Finding:
    """Compares ``ours`` with ``eager``; ``exact`` is the function in float64, where there is one.

    Args:
        ours: the output of our program.
        eager: that of PyTorch.
        exact: in float64.
        zeros_alike: the sign of a zero means nothing (eager's own vectors and scalars differ in it).
    """
    if zeros_alike and ours.dtype.is_floating_point:
        ours, eager = ours + 0.0, eager + 0.0
        exact = exact + 0.0 if exact is not None else None
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return Finding(f"{ours.dtype}{list(ours.shape)}, eager {eager.dtype}{list(eager.shape)}")
    if not eager.dtype.is_floating_point:
        different = ours != eager
        return Finding(shown(different, ours, eager, None)) if different.any() else Finding()
    limit = TOLERANCE[eager.dtype]
    near = _same(ours, eager) | (units_apart(ours, eager) <= limit)
    if bool(near.all()):
        return Finding()
    if exact is None or exact.shape != eager.shape:
        return Finding(shown(~near, ours, eager, None))
    our_error, eager_error = _error(ours, exact), _error(eager, exact)
    excused = (our_error <= limit) | (torch.isfinite(our_error) & (our_error <= 2 * eager_error))
    # Of elu_backward at NaN eager's vectors make NaN, its scalars a number: which are which is up to the machine.
    excused |= _same(ours, exact.to(ours.dtype))
    wrong = ~near & ~excused
    if wrong.any():
        return Finding(shown(wrong, ours, eager, exact))
    return Finding(better=shown(~near, ours, eager, exact))


def _same(left: Tensor, right: Tensor) -> Tensor:
    """Equal with the sign of zeros, or both NaN."""
    equal = (left == right) & (torch.signbit(left) == torch.signbit(right))
    return equal | (torch.isnan(left) & torch.isnan(right))


def units_apart(left: Tensor, right: Tensor) -> Tensor:
    """How many numbers of the type lie between two; infinite where one is not finite, or a zero has another sign."""
    one, other = _ordered(left), _ordered(right)
    apart = (one.to(torch.float64) - other.to(torch.float64)).abs()
    unlike_zeros = (left == 0) & (right == 0) & (torch.signbit(left) != torch.signbit(right))
    apart[unlike_zeros | ~torch.isfinite(left) | ~torch.isfinite(right)] = torch.inf
    return apart


def _ordered(values: Tensor) -> Tensor:
    """Integers that are ordered as the floats are."""
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()]
    bits = values.contiguous().view(width).to(torch.int64)
    return torch.where(bits < 0, torch.iinfo(width).min - bits, bits)


def _error(values: Tensor, exact: Tensor) -> Tensor:
    """Units in the last place of the type of ``values`` from ``exact``; infinite where one is not finite."""
    info = torch.finfo(values.dtype)
    size = exact.abs().clamp(info.smallest_normal, info.max)
    unit = torch.exp2(torch.floor(torch.log2(size))) * info.eps
    found = (values.to(torch.float64) - exact).abs() / unit
    unlike_zeros = (values == 0) & (exact == 0) & (torch.signbit(values) != torch.signbit(exact))
    found[unlike_zeros | ~torch.isfinite(found)] = torch.inf
    return found


def shown(where: Tensor, ours: Tensor, eager: Tensor, exact: Tensor | None) -> str:
    """How many elements, and the first few: ours, eager's and the exact value."""
    places = where.nonzero()
    shown = []
    for place in np.asarray(places)[:3]:
        index = tuple(int(axis) for axis in place)
        text = f"{list(index)}: {ours[index].item()!r} for {eager[index].item()!r}"
        shown.append(text + (f" (float64 {exact[index].item()!r})" if exact is not None else ""))
    return f"{len(places)} of {where.numel()}: " + "; ".join(shown)
