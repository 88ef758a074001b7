"""Functions of torch.distributed that refuse every backend but those they know: ours are served, all others passed on.

``monitored_barrier`` looks at the backend's name; ``split_group`` wants an accelerator before it looks at the group;
from torch 2.15 on torch's flight recorder asks each group for a backend in C++, and ours record themselves.
Once a group of ours exists they are replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.subgroups import make_subgroup
from lowerkit.runtimes.collective.failures import usage


def patch_torch_functions() -> None:
    """Makes torch's functions serve groups of this backend; may be called again."""
    replacements: dict[str, Callable[..., Any]] = {
        "monitored_barrier": _monitored_barrier,
        "split_group": _split_group,
        "_maybe_attach_flight_recorder": _attach_flight_recorder,
    }
    for name, replacement in replacements.items():
        own = getattr(distributed_c10d, name, None)
        if own is None or hasattr(own, "serves_lowerkit"):  # releases of torch differ in what they have
            continue
        serving = functools.wraps(own)(functools.partial(replacement, own))
        setattr(serving, "serves_lowerkit", True)  # noqa: B010 -- functions have no such attribute for a type checker
        for module in (distributed_c10d, dist):
            if hasattr(module, name):
                setattr(module, name, serving)


def _attach_flight_recorder(own: Callable[..., None], group: Any, *further: Any) -> None:
    if not isinstance(group, ProcessGroup):
        own(group, *further)


def _monitored_barrier(
    own: Callable[..., None], group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    found: Any = dist.group.WORLD if group is None else group
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    if isinstance(found, ProcessGroup):
        return found.monitored_barrier(limit, wait_all_ranks)
    # engine="gloo" is a group of torch under our name; a number says that this rank is not in the group.
    if found is not None and not isinstance(found, int) and dist.get_backend(found) == "lowerkit":
        return found.monitored_barrier(limit or dist.default_pg_timeout, wait_all_ranks)
    return own(group, timeout, wait_all_ranks)


def _split_group(
    own: Callable[..., Any],
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: Any = None,
) -> Any:
    """Makes a group of those ranks of the parent that this rank is among; None: it is in no part."""
    parent = dist.group.WORLD if parent_pg is None else parent_pg
    if not isinstance(parent, ProcessGroup):
        further = {} if backend is None else {"backend": backend}  # older releases do not know it
        return own(parent_pg, split_ranks, timeout, pg_options, group_desc, **further)
    parent.splits += 1
    members = _own_part(parent, split_ranks)
    if backend not in {None, dist.get_backend(parent)}:
        raise dist.DistBackendError(usage(f"split_group of a lowerkit group into one of {backend!r}").render())
    if members is None:
        return None
    return make_subgroup(parent, members, f"split.{parent.splits}.{members[0]}", timeout, pg_options, group_desc)


def _own_part(parent: ProcessGroup, parts: Sequence[Sequence[int]] | None) -> list[int] | None:
    """Returns the part that this rank is in, sorted, or None.

    Raises:
        ValueError: there are no parts, or one is empty or names a rank twice, in two parts or not of the parent.
    """
    if not parts:
        raise ValueError("split_ranks cannot be None or empty")
    ranks = [rank for part in parts for rank in part]
    if any(len(part) == 0 for part in parts):
        raise ValueError("the split group cannot be empty")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"the split groups {list(map(list, parts))} name a rank twice")
    if min(ranks) < 0 or max(ranks) >= parent.size():
        raise ValueError(f"the split groups {list(map(list, parts))} name ranks that the parent does not have")
    return next((sorted(part) for part in parts if parent.rank() in part), None)
