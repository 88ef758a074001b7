"""Which values an op is defined on, beyond types and shapes: what is drawn is made to fit, special values too.

Outside of them PyTorch computes what its algorithm makes of it (searches of what is in no order), other numbers in each
version, or ends the process (bags that reach beyond their tensor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Fitting = Callable[[list[Tensor]], list[Tensor]]
"""Given an op's tensors, returns those that are put in their place."""


def fitting(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors on which an op is defined.

    Args:
        name: the op, ``aten.bucketize.Tensor``; of one that is not listed the tensors come back.
        tensors: its operands, of any values.
    """
    rule = _DOMAINS.get(name.removeprefix("aten.").partition(".")[0])
    return list(tensors) if rule is None else rule(list(tensors))


def _sorted_boundaries(tensors: list[Tensor]) -> list[Tensor]:
    """searchsorted: boundaries that rise, or that a sorter brings in order."""
    boundaries, *values = tensors
    boundaries = _without_nan(boundaries)
    if len(values) == 2:
        return [boundaries, values[0], boundaries.argsort(-1)]
    return [boundaries.sort(-1).values, *values]


def _sorted_buckets(tensors: list[Tensor]) -> list[Tensor]:
    """bucketize: the value may be a number, or the boundaries themselves."""
    *value, boundaries = tensors
    return [*value, _without_nan(boundaries).sort(-1).values]


def _without_nan(boundaries: Tensor) -> Tensor:
    """A search by halves takes NaN for the least where it comes across it, and for the largest where not."""
    return boundaries.nan_to_num(torch.inf, torch.inf, -torch.inf) if boundaries.is_floating_point() else boundaries


def _positive_definite(tensors: list[Tensor]) -> list[Tensor]:
    """A factor exists, and no square leaves the type."""
    matrix, *rest = tensors
    matrix = matrix.clamp(-1e4, 1e4)
    raised = matrix @ matrix.mT
    unit = 1 + raised.abs().amax((-2, -1), keepdim=True) if raised.numel() else 1
    return [raised + unit * torch.eye(raised.shape[-1], dtype=raised.dtype), *rest]


def _in_place_pivots(tensors: list[Tensor]) -> list[Tensor]:
    """Rows that are exchanged with themselves: LAPACK reads whatever row a pivot says."""
    factors, pivots, *rest = tensors
    return [factors, torch.arange(1, pivots.shape[-1] + 1).to(pivots.dtype).expand(pivots.shape).clone(), *rest]


def _no_poles(tensors: list[Tensor]) -> list[Tensor]:
    """polygamma: eager is finite at 0, -1, -2 and so on, each processor's in its way."""
    (value,) = tensors
    poles = (value <= 0) & (value.to(torch.float64).frac() == 0)
    return [torch.where(poles, 1, value).to(value.dtype)]


def _one_segment(tensors: list[Tensor]) -> list[Tensor]:
    """segment_reduce: empty segments and a last one of all, said by lengths or by offsets.

    Eager reads what lies behind where they are longer.
    """
    value, *rest = tensors
    if not rest:
        return tensors
    said, *_ = rest
    whole = torch.zeros_like(said)
    if said.numel():
        whole[..., -1] = value.shape[said.dim() - 1]
    return [value, whole, *rest[1:]]


def _in_the_plane(tensors: list[Tensor]) -> list[Tensor]:
    """Backward max pools: places of the input; eager writes to any."""
    *_, value, places = tensors
    return [*tensors[:-1], places.remainder(max(1, value.shape[-1] * value.shape[-2]))]


def _no_smallest(tensors: list[Tensor]) -> list[Tensor]:
    """gcd, lcm: eager divides by what they have in common, and the smallest integer by -1 is none."""
    return [value.clamp(min=torch.iinfo(value.dtype).min // 2) for value in tensors]


_DOMAINS: Mapping[str, Fitting] = {
    "searchsorted": _sorted_boundaries,
    "bucketize": _sorted_buckets,
    **dict.fromkeys(("linalg_cholesky", "linalg_cholesky_ex", "cholesky"), _positive_definite),
    **dict.fromkeys(("linalg_lu_solve", "lu_unpack"), _in_place_pivots),
    **dict.fromkeys(("polygamma", "special_polygamma"), _no_poles),
    "segment_reduce": _one_segment,
    "max_pool2d_with_indices_backward": _in_the_plane,
    **dict.fromkeys(("gcd", "lcm"), _no_smallest),
}
