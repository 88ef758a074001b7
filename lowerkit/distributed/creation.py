"""Makes the process group that torch.distributed asks for."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lowerkit.distributed.monitoring import serve_torch_function
from lowerkit.distributed.options import Options
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.torch_store import TorchStore, interface_towards
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.job_token import given_token
from lowerkit.runtimes.collective.meeting import RendezvousOptions


def create(request: Any, options: Any) -> Any:
    """Makes a process group; returns when all ranks of it are connected.

    Args:
        request: torch's ``_DistributedBackendOptions``: store, rank, size, timeout, name.
        options: ``pg_options`` of the caller, an :class:`Options` or None.

    Raises:
        DistBackendError: the options are no :class:`Options`, or the group did not come about.
    """
    try:
        return _create(request, Options() if options is None else options)
    except LowerkitError as error:
        raise dist.DistBackendError(error.render()) from error


def _create(request: Any, options: Any) -> Any:
    if not isinstance(options, Options):
        raise usage(f"pg_options is a {type(options).__name__}, expected lowerkit.distributed.Options")
    store, rank, size, timeout = request.store, request.group_rank, request.group_size, request.timeout
    if options.engine == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    if options.engine == "nccl":
        if not dist.is_nccl_available():
            raise usage("engine='nccl': this torch has no NCCL")
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, nccl)
    if options.engine != "lowerkit":
        raise usage(f"there is no engine {options.engine!r}; there are lowerkit, gloo and nccl")
    seconds = timeout.total_seconds()
    reach = RendezvousOptions(
        given_token(options.token), options.interface or interface_towards(store), options.shared_memory, seconds
    )
    group = Group.join(
        TorchStore(store),
        request.group_id or "world",
        rank,
        size,
        reach,
        timeout=seconds,
        tuning=options.tuning,
        record_folder=options.record_folder,
    )
    serve_torch_function()
    return ProcessGroup(store, group, options, timeout)
