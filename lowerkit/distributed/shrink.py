"""Going on with the ranks that are left.

torch's ``shrink_group`` makes a group of its own around what a backend gives it, which must be one of its own backends:
a group in Python cannot be that. This one stands beside it.
"""

# torch's stubs do not export what torch.distributed imports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import torch.distributed as dist

from lowerkit.distributed.options import Options
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.subgroups import make_subgroup
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import not_formed, usage
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline

_PATIENCE = timedelta(seconds=10)


def shrink_group(
    ranks_to_exclude: Collection[int] | None = None,
    group: dist.ProcessGroup | None = None,
    patience: timedelta = _PATIENCE,
    pg_options: Options | None = None,
) -> ProcessGroup:
    """Makes a group of the ranks that are left; each of them calls it. They keep their order.

    The group before it is destroyed; with the default group all others are, and the new one is the default group:
    ranks are counted anew. The store that the ranks found each other by must still be there.

    Args:
        ranks_to_exclude: ranks of ``group`` that are left out, whether they live or not; None: those that do not come.
            Ranks that are excluded while the others are well may go on without an error until they next call the group.
        group: a group of this backend; None: the default group.
        patience: until all others must be there. Ranks that are known to be dead are not waited for.
        pg_options: of the new group; None: those of ``group``.

    Raises:
        UsageError: LK1010, ``group`` is not one of this backend.
        DistBackendError: LK1010, ``ranks_to_exclude`` is empty, or holds this rank or ranks that the group does not
            have; LK8007, with ``ranks_to_exclude`` another rank did not come, or the others went on without this one,
            or the new group did not come about.
    """
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroup):
        raise usage(f"{found!r} is no group of the backend lowerkit")
    members = _members(found, ranks_to_exclude, patience.total_seconds())
    options, name = pg_options or found.options, f"shrunk.{'.'.join(map(str, members))}"
    if found is not dist.group.WORLD:
        ranks = [dist.get_global_rank(found, rank) for rank in members]
        smaller = make_subgroup(found, members, name, options=options, description=f"shrunk to {ranks}")
        dist.destroy_process_group(found)
        return smaller
    store = dist.PrefixStore(f"lowerkit/{found.group.identity}/{name}/", found.get_group_store())
    backend = dist.get_backend(found)
    dist.destroy_process_group()
    dist.init_process_group(
        backend, store=store, rank=members.index(found.rank()), world_size=len(members), timeout=found.timeout,
        pg_options=options,
    )  # fmt: skip
    assert isinstance(dist.group.WORLD, ProcessGroup)
    return dist.group.WORLD


def _members(group: ProcessGroup, excluded: Collection[int] | None, seconds: float) -> list[int]:
    """Agrees with the other ranks on who is left; returns the list that all of them have."""
    native = group.group
    try:
        if excluded is None:
            return native.survivors(seconds)
        left_out, everybody = set(excluded), set(range(group.size()))
        if not left_out or not left_out <= everybody - {group.rank()}:
            raise usage(f"rank {group.rank()} of {group.size()} ranks cannot exclude {sorted(left_out)}")
        members = sorted(everybody - left_out)
        _await(native, members, f"{native.identity}/without.{'.'.join(map(str, sorted(left_out)))}", seconds)
    except LowerkitError as error:
        raise dist.DistBackendError(error.render()) from error
    return members


def _await(group: Group, members: list[int], key: str, seconds: float) -> None:
    """Waits until all members are there; who gives up takes that it was there back, and may try again."""
    deadline = Deadline(seconds)
    group.store.set(f"{key}/{group.rank}", b"1")
    missing: list[int] = []
    for rank in members:
        try:
            group.store.get(f"{key}/{rank}", deadline.remaining())
        except TimeoutError:
            missing.append(rank)
    if missing:
        group.store.delete(f"{key}/{group.rank}")
        raise not_formed(
            f"group {group.name!r}: ranks {missing} did not come to shrink it within {seconds:.3g} s",
            hint="without ranks_to_exclude, those that do not come are left out",
        )
