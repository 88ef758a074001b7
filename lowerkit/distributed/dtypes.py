"""dtypes and reductions of torch as those of the native interface."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum  # pyright: ignore[reportPrivateUsage]

from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS
from lowerkit.runtimes.collective.failures import usage

# dtype -> (native dtype, native elements for each element): complex numbers are pairs of floats.
NATIVE: dict[torch.dtype, tuple[int, int]] = {
    **{getattr(torch, name): (number, 1) for number, name in enumerate(DTYPES)},
    torch.complex32: (DTYPES.index("float16"), 2),
    torch.complex64: (DTYPES.index("float32"), 2),
    torch.complex128: (DTYPES.index("float64"), 2),
}
_BYTES = DTYPES.index("uint8")

SUM = REDUCTIONS.index("sum")
PREMULTIPLIED_SUM = REDUCTIONS.index("premul_sum")
_OF_COMPLEX = {SUM, REDUCTIONS.index("avg"), PREMULTIPLIED_SUM}

# The hash of a ReduceOp is the number of its kind: the one property that is read in a fraction of a microsecond.
_KINDS = {
    "SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
    "BXOR": "bxor", "PREMUL_SUM": "premul_sum",
}  # fmt: skip
REDUCTION_OF_HASH: dict[int, int] = {
    hash(dist.ReduceOp(getattr(dist.ReduceOp.RedOpType, theirs))): REDUCTIONS.index(ours)
    for theirs, ours in _KINDS.items()
    if theirs != "PREMUL_SUM"
}
REDUCTION_OF_HASH[hash(_make_nccl_premul_sum(1.0))] = PREMULTIPLIED_SUM
assert len(REDUCTION_OF_HASH) == len(REDUCTIONS)


def moved(dtype: torch.dtype) -> tuple[int, int]:
    """Returns native dtype and elements per element to move values with: any dtype, at worst as bytes."""
    return NATIVE.get(dtype) or (_BYTES, dtype.itemsize)


def reduced(dtype: torch.dtype, reduction: int) -> tuple[int, int]:
    """Returns native dtype and elements per element for an operation that reduces values.

    Raises:
        UsageError: LK1010, there is no such reduction of the dtype.
    """
    native = NATIVE.get(dtype)
    if native is None:
        known = ", ".join(str(known).removeprefix("torch.") for known in NATIVE)
        raise usage(f"{dtype} is not reduced", hint=f"reduced are {known}")
    if native[1] == 2 and reduction not in _OF_COMPLEX:
        raise usage(f"{REDUCTIONS[reduction]} of {dtype} has no meaning; sum, avg and premul_sum have")
    return native


def factor_of(operation: Any, rank_tensor: torch.Tensor) -> float:
    """Returns the factor of a PREMUL_SUM (a number, or a tensor of one element), and 1.0 for any other reduction.

    Raises:
        UsageError: LK1010, the factor is a tensor of several elements.
    """
    if hash(operation) == 0 or REDUCTION_OF_HASH.get(hash(operation)) != PREMULTIPLIED_SUM:
        return 1.0
    factor = operation.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise usage(f"PREMUL_SUM of a {tuple(rank_tensor.shape)} tensor by a factor of {factor.numel()} elements")
        return float(factor.item())
    return float(factor)
