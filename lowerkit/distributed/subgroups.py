"""Groups made of another one's ranks, by them alone: they meet where that group's ranks did.

torch names such groups by how many groups a rank is in. Ranks that are in different numbers of groups would look for
each other under different names, so the name that they meet by is made here, and travels in the options.
"""

# torch's stubs do not export what torch.distributed imports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lowerkit.distributed.options import Options
from lowerkit.distributed.submission import ProcessGroupBase


@dataclass(frozen=True)
class SubgroupOptions:
    """Takes the place of a group's options, for groups of another one's ranks.

    Attributes:
        options: of the new group.
        store: common to its ranks, used for nothing else.
        name: by which they meet.
    """

    options: Options
    store: dist.Store
    name: str


def make_subgroup(
    parent: ProcessGroupBase,
    members: Sequence[int],
    name: str,
    timeout: timedelta | None = None,
    options: Options | None = None,
    description: str | None = None,
) -> Any:
    """Makes a group; its ranks call it, and no others.

    Args:
        parent: the group whose ranks they are.
        members: their ranks there, ascending; their order in the new group.
        name: the same on all of them, and used once in the parent.
        timeout: of operations; None: the parent's.
        options: None: the parent's.
        description: for people.
    """
    store = dist.PrefixStore(f"lowerkit/{parent.group.identity}/{name}/", parent.get_group_store())
    ranks = [dist.get_global_rank(parent, rank) for rank in members]
    # An argument that torch has from some release on.
    unsorted: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
    return dist.new_group(
        ranks, timeout or parent.timeout, backend="lowerkit",
        pg_options=SubgroupOptions(options or parent.options, store, f"{parent.group.name}/{name}"),
        use_local_synchronization=True, group_desc=description, **unsorted,
    )  # fmt: skip
