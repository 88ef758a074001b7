"""Which products are sums of chunks, whatever the mesh: those that a plan for two ranks sums over them.

A mesh that sums other products over ranks would give other bits. So those of the reference are summed over ranks along
one axis of a mesh; where none does, each rank sums the same chunks by itself, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.passes.shard.fix_reductions import FixReductions
from lowerkit.passes.shard.plan import Choice, ShardingPlan
from lowerkit.spmd.auto.roles import Role

REFERENCE = "tp"
"""The name of the axis of weights, alone and of two ranks, whose plan says it."""


@dataclass(frozen=True)
class FixedSums:
    """What a plan may sum over ranks.

    Attributes:
        reference: the plan for two ranks; None where it splits nothing.
        taken: an axis in front sums them over its ranks already.
    """

    reference: ShardingPlan | None
    taken: bool = False

    def choices(self, role: Role, choices: Sequence[Choice], ranks: int) -> Sequence[Choice]:
        """Returns what a role may be given of ``choices``: where sums are concerned, that or nothing else.

        Ranks that cannot share the chunks each make all of them.
        """
        if "row" not in choices:
            return choices
        if not self._is_sum(role):
            return [choice for choice in choices if choice != "row"]
        return [] if self.taken or FixReductions.chunks % ranks else ["row"]

    def behind(self, plan: ShardingPlan) -> FixedSums:
        """Returns what the axes behind one with a plan may sum."""
        return FixedSums(self.reference, self.taken or any(entry.choice == "row" for entry in plan.entries))

    def _is_sum(self, role: Role) -> bool:
        entries = [] if self.reference is None else [self.reference.entry_for([path]) for path in role.members]
        return any(entry is not None and entry.choice == "row" for entry in entries)
