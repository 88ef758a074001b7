"""all_reduce of sparse tensors (COO): every rank gets all ranks' entries, and adds those of equal indices.

Bytes moved: each rank receives the entries of all others, indices (8 bytes a dimension) and values. It is done when the
call returns, also where a caller asked for an operation that goes on behind it: sizes come first, and entries after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerkit.distributed.arguments import nanoseconds
from lowerkit.distributed.dtypes import moved
from lowerkit.distributed.work import FinishedWork
from lowerkit.runtimes.collective.calls import REDUCTIONS, Operation

if TYPE_CHECKING:
    from lowerkit.distributed.submission import ProcessGroupBase

_ALL_GATHER = int(Operation.ALL_GATHER)
_SUMS = {REDUCTIONS.index("sum"), REDUCTIONS.index("avg")}


def sparse_all_reduce(group: ProcessGroupBase, tensor: torch.Tensor, reduction: int, timeout: Any) -> FinishedWork:
    """Reduces a sparse CPU tensor of each rank into all of them, in place; the results are coalesced.

    Raises:
        DistBackendError: LK1010, a reduction other than sum and avg, another device, or shapes that differ.
    """
    if reduction not in _SUMS or not tensor.is_cpu:
        raise group.refusal(
            f"{REDUCTIONS[reduction]} of a sparse tensor on {tensor.device} is not supported; sum and avg on CPUs are",
            "to_dense() makes it dense",
        )
    limit = nanoseconds(timeout)
    own = tensor.detach().coalesce()
    described = torch.tensor([own._nnz(), own.sparse_dim(), *own.shape])
    every = _gather(group, described, [torch.empty_like(described) for _ in range(group.size())], limit)
    if any(not torch.equal(one[1:], described[1:]) for one in every):
        shapes = [tuple(one[2:].tolist()) for one in every]
        raise group.refusal(f"sparse tensors of the ranks have the shapes {shapes}")
    counts = [int(one[0]) for one in every]
    indices, values = own.indices().contiguous(), own.values().contiguous()
    all_indices = _gather(group, indices, [indices.new_empty(indices.shape[0], count) for count in counts], limit)
    all_values = _gather(group, values, [values.new_empty(count, *values.shape[1:]) for count in counts], limit)
    total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), own.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total if reduction == REDUCTIONS.index("sum") else total / group.size())
    return FinishedWork([tensor])


def _gather(
    group: ProcessGroupBase, tensor: torch.Tensor, outputs: list[torch.Tensor], limit: int
) -> list[torch.Tensor]:
    dtype, width = moved(tensor.dtype)
    parts = [(output.data_ptr(), output.numel() * width) for output in outputs]
    group.issue_parts(
        (_ALL_GATHER, dtype, tensor.numel() * width, tensor.data_ptr(), 0, (), parts, 0, 0, 1.0, limit), False
    )
    return outputs
