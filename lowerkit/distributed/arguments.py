"""Arguments that torch.distributed hands to methods of a process group, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS

Tensors = list[torch.Tensor]


def as_list(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Tensors:
    """Returns tensors as a list: methods of a process group take one tensor or several."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def nanoseconds(timeout: timedelta | None) -> int:
    """Returns a timeout for the native side; torch's "unset" is negative and becomes 0, the group's own."""
    return 0 if timeout is None or timeout.days < 0 else int(timeout.total_seconds() * NANOSECONDS)
