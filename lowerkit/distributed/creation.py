"""Makes the process group that torch.distributed asks for."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lowerkit.distributed.options import Options
from lowerkit.distributed.patched_functions import patch_torch_functions
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.subgroups import SubgroupOptions
from lowerkit.distributed.torch_store import TorchStore, interface_towards
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.engine import refuse_unused
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.job_token import given_token
from lowerkit.torch_version import require_torch

# Those of the last default group of this backend, which torch does not hand on to groups made of its ranks.
_of_default_group = Options()


def create(request: Any, options: Any) -> Any:
    """Makes a process group; returns when all ranks of it are connected.

    Args:
        request: torch's ``_DistributedBackendOptions``: store, rank, size, timeout, name.
        options: ``pg_options`` of the caller, an :class:`Options`, a :class:`SubgroupOptions`, or None: those of the
            default group, if it is one of this backend.

    Raises:
        DistBackendError: the options are no :class:`Options`, or the group did not come about.
    """
    global _of_default_group  # noqa: PLW0603 -- torch has one default group in a process
    is_default_group = not request.global_ranks_in_group
    if options is None:
        options = _of_default_group if not is_default_group and _default_group_is_ours() else Options()
    if isinstance(options, SubgroupOptions):
        request.store, request.group_id, options = options.store, options.name, options.options
    try:
        require_torch()
        group = _create(request, options)
    except LowerkitError as error:
        raise dist.DistBackendError(error.render()) from error
    patch_torch_functions()
    if is_default_group:
        _of_default_group = options
    return group


def _default_group_is_ours() -> bool:
    """Tells it by the name of its backend: with engine gloo it is a group of torch."""
    return "lowerkit" in str(dist.get_backend_config())  # "cpu:lowerkit,cuda:lowerkit"


def _create(request: Any, options: Any) -> Any:
    if not isinstance(options, Options):
        raise usage(f"pg_options is a {type(options).__name__}, expected lowerkit.distributed.Options")
    if options.engine == "gloo" or options.engine == "nccl":  # noqa: PLR1714 -- narrows the type
        return _backend_of_torch(request, options)
    if options.engine != "lowerkit" and options.engine != "mpi":  # noqa: PLR1714
        raise usage(f"there is no engine {options.engine!r}; there are lowerkit, mpi, gloo and nccl")
    store, timeout = request.store, request.timeout
    seconds = timeout.total_seconds()
    is_native = options.engine == "lowerkit"
    reach = RendezvousOptions(
        given_token(options.token) if is_native or options.token is not None else None,
        options.interface or (interface_towards(store) if is_native else None),
        options.shared_memory,
        seconds,
    )
    group = Group.join(
        TorchStore(store),
        request.group_id or "world",
        request.group_rank,
        request.group_size,
        reach,
        timeout=seconds,
        tuning=options.tuning,
        record_folder=options.record_folder,
        engine=options.engine,
    )
    return ProcessGroup(store, group, options, timeout)


def _backend_of_torch(request: Any, options: Options) -> Any:
    refuse_unused(
        options.engine, token=options.token is not None, interface=options.interface is not None,
        shared_memory=not options.shared_memory, tuning=options.tuning is not None,
        record_folder=options.record_folder is not None,
    )  # fmt: skip
    store, rank, size, timeout = request.store, request.group_rank, request.group_size, request.timeout
    if options.engine == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    if not dist.is_nccl_available():
        raise usage("engine='nccl': this torch has no NCCL")
    nccl = dist.ProcessGroupNCCL.Options()
    nccl._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, nccl)
