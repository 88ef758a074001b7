"""The verdict on one output of an operator: bits for integers and bools, gate A for floats, NaN and infinities where
eager has them.

An output that holds nothing but values of the arguments was moved, and is compared by bits, the sign of zeros too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lowerkit.parity.gates import Verdict, judge_op
from lowerkit.parity.judge.units import Finding, shown
from lowerkit.program.dtypes import name_of, to_numpy

_ORDERING = (
    "max",
    "min",
    "sort",
    "topk",
    "kthvalue",
    "median",
    "mode",
    "clamp",
    "quantile",
    "pool",
    "argsort",
    "where",
)
"""Which of two zeros comes first, and the place of which of two equal values is given, nothing says."""

PARTIAL_SUMS = 1024.0
"""Partial sums may leave the type where the sum is no less than this part of its largest number."""


FAR_NEARER = 2.0**-10
"""Which part of eager's error to float64 is none beside it."""


def judge_operator(
    operator: str,
    tensors: Sequence[Tensor],
    ours: Tensor,
    eager: Tensor,
    exact: Tensor | None,
    *,
    ties: bool,
    spread: float = 1.0,
) -> Finding:
    """Compares one output of an operator with eager's.

    Args:
        operator: its name.
        tensors: what it was called on.
        ours: the output of our program. eager: that of PyTorch.
        exact: the same operator in float64, where that can be computed.
        spread: from which part of the type's largest number on a result may be an infinity in one order of its sums.
        ties: whether values of the tensors are equal, so that places of the first or largest may differ.
    """
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return Finding(f"{ours.dtype}{list(ours.shape)}, eager {eager.dtype}{list(eager.shape)}")
    orders = any(word in operator for word in _ORDERING)
    if not eager.dtype.is_floating_point:
        different = ours != eager
        if not different.any() or (orders and ties and eager.dtype == torch.int64):
            return Finding()
        return Finding(shown(different, ours, eager, None))
    if _same_bits(ours, eager):
        return Finding()
    found = _of_floats(tensors, ours, eager, exact, spread=spread, orders=orders)
    return Finding() if found.wrong and spread > 1 and _products_leave_the_type(tensors, ours.dtype) else found


def difference(
    operator: str,
    tensors: Sequence[Tensor],
    ours: Tensor,
    eager: Tensor,
    exact: Callable[[], Tensor | None],
    *,
    ties: bool,
    spread: float = 1.0,
) -> str:
    """Returns what :func:`judge_operator` says is wrong, empty where nothing is.

    The float64 reference can only explain a difference: it is computed where there is one.
    """
    if not judge_operator(operator, tensors, ours, eager, None, ties=ties, spread=spread).wrong:
        return ""
    return judge_operator(operator, tensors, ours, eager, exact(), ties=ties, spread=spread).wrong


def _same_bits(left: Tensor, right: Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return torch.equal(left.contiguous().view(kind), right.contiguous().view(kind))


def _of_floats(
    tensors: Sequence[Tensor], ours: Tensor, eager: Tensor, exact: Tensor | None, *, spread: float, orders: bool
) -> Finding:
    same = (ours == eager) | (torch.isnan(ours) & torch.isnan(eager))
    unlike = ~same & ~(torch.isfinite(ours) & torch.isfinite(eager))
    if exact is not None and exact.shape == eager.shape:
        rounded = exact.to(ours.dtype)
        right = (ours == rounded) | (torch.isnan(ours) & torch.isnan(rounded)) | _near(ours, exact)
    else:
        exact, right = None, torch.zeros_like(unlike)
    if exact is not None:
        # Partial sums leave the type: whether an infinity or NaN comes of them hangs on their order.
        beyond = torch.isfinite(exact) & (exact.abs() > torch.finfo(ours.dtype).max / spread)
        unlike &= ~(beyond if spread > 1 else beyond & ~torch.isfinite(ours) & ~torch.isfinite(eager))
    if (unlike & ~right).any():
        return Finding(shown(unlike & ~right, ours, eager, exact))
    finite = torch.isfinite(ours) & torch.isfinite(eager)
    verdict = judge_op(
        name_of(to_numpy(eager).dtype),
        to_numpy(ours[finite]),
        to_numpy(eager[finite]),
        np.asarray(exact[finite].to(torch.float64)) if exact is not None and exact.is_floating_point() else None,
    )
    if not verdict.passed:
        said = f"{verdict.reason}; {shown(finite & (ours != eager), ours, eager, exact)}"
        return Finding(better=said) if _is_far_nearer(verdict) else Finding(said)
    signs = same & (ours == 0) & (torch.signbit(ours) != torch.signbit(eager))
    if exact is not None:
        signs &= torch.signbit(ours) != torch.signbit(exact)
    if signs.any() and not orders and bool((eager != 0).any()) and _is_moved(eager, tensors):
        return Finding("the sign of a zero: " + shown(signs, ours, eager, exact))
    return Finding(better=shown(unlike, ours, eager, exact) if unlike.any() else "")


def _products_leave_the_type(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether a product of two elements may: what sums then make of it hangs on their order, and on no rule."""
    sizes = [tensor.abs() for tensor in tensors if tensor.dtype.is_floating_point and tensor.numel()]
    largest = [torch.where(torch.isfinite(size), size, 0.0).amax().item() for size in sizes]
    return max(largest, default=0.0) ** 2 > torch.finfo(dtype).max


def _is_far_nearer(verdict: Verdict) -> bool:
    """Whether ours is all but exact beside eager: where terms cancel to nothing, no error is small beside what is left.

    A batch of one element is the mean of itself: ours gives 0, the operator in float64 1e-13, eager 1e-4.
    """
    ours, theirs = verdict.to_float64, verdict.eager_to_float64
    if ours is None or theirs is None:
        return False
    return ours.max_abs <= FAR_NEARER * theirs.max_abs and ours.rms <= FAR_NEARER * theirs.rms


def _near(values: Tensor, exact: Tensor) -> Tensor:
    wide = values.to(torch.float64)
    return torch.isfinite(wide) & ((wide - exact).abs() <= 16 * torch.finfo(values.dtype).eps * exact.abs())


def _is_moved(eager: Tensor, tensors: Sequence[Tensor]) -> bool:
    given = [tensor.reshape(-1) for tensor in tensors if tensor.dtype == eager.dtype]
    return bool(given) and bool((torch.isin(eager, torch.cat(given)) | torch.isnan(eager)).all())
