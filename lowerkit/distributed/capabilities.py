"""What torch asks of a process group before it uses it: names, devices, backends, and what they can do.

torch keeps a backend for each device beside a group. Here the group is the backend of all its devices.
"""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.group import Group


class Capabilities(dist.ProcessGroup):
    """The answers, for a group whose constructor has run.

    Attributes:
        group: the connected ranks.
    """

    group: Group
    _torch_name: str
    _description = ""
    supports_splitting = False  # as `split_group` means it: by the backend itself, on an accelerator
    # torch asks before it calls `shrink`, whose refusal says more than torch's own.
    supports_shrinking = True
    supports_coalescing = False  # messages of a batch start one by one, and none waits for another
    supports_time_estimate = False
    _supports_time_estimate = False  # the same, as torch 2.15 calls it

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._torch_name

    @property
    def pg_name(self) -> str:
        """The same."""
        return self._torch_name

    def _set_group_name(self, name: str) -> None:
        self._torch_name = name

    @property
    def group_desc(self) -> str:
        """The description that torch gave the group."""
        return self._description

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns False: tensors are made by torch."""
        return False

    @property
    def _device_types(self) -> list[torch.device]:
        has_cuda = dist.is_nccl_available() and torch.cuda.is_available()
        return [torch.device("cpu"), torch.device("cuda")] if has_cuda else [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type not in {one.type for one in self._device_types}:
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, pg_options: Any = None) -> Any:
        """Refuses: torch wants a backend of its own back, in C++.

        Raises:
            DistBackendError: always; it names the function that does it.
        """
        raise dist.DistBackendError(
            usage(
                "torch.distributed.shrink_group cannot be served by a group that is written in Python",
                hint=f"lowerkit.distributed.shrink_group({ranks_to_exclude}) does the same",
            ).render()
        )

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: every group counts its operations from 1."""

    def _get_sequence_number_for_group(self) -> int:
        """Returns the number of the last collective, 0 before the first."""
        numbers = (record["sequence"] for record in reversed(self.group.native.records()))
        return next((number for number in numbers if isinstance(number, int) and number), 0)
