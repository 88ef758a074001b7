"""Chooses what happens to the weights of each role along one axis: greedily in program order, then by flips.

Vocabulary
    assignment   a choice for each role that has one; the others are whole on every rank
    flip         another choice for one role

Steps:
    1. role by role in program order: of the choices that split its weights, the one that makes the program cheapest as
       it stands then, the roles behind it whole. So a product is split along its outputs, or along its inputs where
       the left operand comes split that way;
    2. flip one role at a time while that makes the program cheaper and each rank holds at most a quarter more weights
       than the plan of the first step lets it hold: what is little may be whole, what is much is what the axis is for.
Cheaper is what takes less time times bytes of weights a rank; ties go to fewer collectives, then to the first choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lowerkit.passes.shard.plan import Choice, PlanEntry, ShardingPlan
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.fixed_sums import FixedSums
from lowerkit.spmd.auto.roles import Role
from lowerkit.spmd.auto.trial import Estimate, Trial

Assignment: TypeAlias = Mapping[Role, Choice]
ROOM = 1.25
"""Weights a rank may hold, as a multiple of those it holds with everything split that can be."""
_MOST_ROUNDS = 3
_SAME = 1e-9


@dataclass
class Search:
    """Tries assignments on a program.

    Attributes:
        base: the program, split along the axes before.
        axis: along which it is split now.
        roles: in program order.
        choices: that may be taken, in the order of preference.
        sparse: leaves out what changes nothing.
        sums: what may be summed over ranks; None: whatever is cheapest.
    """

    base: Trial
    axis: MeshAxis
    roles: Sequence[Role]
    choices: Sequence[Choice]
    sparse: bool = False
    sums: FixedSums | None = None
    _known: dict[tuple[Choice | None, ...], Trial | None] = field(
        default_factory=dict[tuple["Choice | None", ...], "Trial | None"]
    )
    _possible: dict[Role, list[Choice]] = field(default_factory=dict[Role, list[Choice]])

    def run(self, *, flips: bool = True) -> dict[Role, Choice]:
        """Returns the cheapest assignment that was found, with ``flips`` or without."""
        assignment = self._greedy()
        return self._flipped(assignment) if flips else assignment

    def possible(self, role: Role) -> list[Choice]:
        """Returns the choices that split the weights of a role, as the greedy search met them."""
        return self._possible[role]

    def trial(self, assignment: Assignment) -> Trial | None:
        """Returns the program split by an assignment; None where that cannot be, or where a choice splits nothing."""
        key: tuple[Choice | None, ...] = tuple(assignment.get(role) for role in self.roles)
        if key not in self._known:
            plan = self.plan(assignment)
            found = self.base.split(plan) if plan.entries else self.base
            used = all(entry in plan.report.used for entry in plan.entries if entry.choice != "replicate")
            self._known[key] = found if used else None
        return self._known[key]

    def plan(self, assignment: Assignment) -> ShardingPlan:
        """Returns the plan of an assignment. Wide patterns stand last, and of these the longest paths first."""
        wide = [entry for role, choice in assignment.items() if role.wide for entry in _entries(role, choice)]
        wide.sort(key=lambda entry: -entry.pattern.count("."))
        exact = [entry for role, choice in assignment.items() if not role.wide for entry in _entries(role, choice)]
        caught = [
            entry
            for role in self.roles
            if role not in assignment and any(entry.names(path) for entry in wide for path in role.members)
            for entry in _entries(role, "replicate")
        ]
        return ShardingPlan(self.axis.name, self.axis.size, (*exact, *caught, *wide))

    def estimate(self, assignment: Assignment) -> Estimate | None:
        """Returns what a rank does under an assignment; None where it cannot be."""
        found = self.trial(assignment)
        return None if found is None else found.estimate

    def _greedy(self) -> dict[Role, Choice]:
        assignment: dict[Role, Choice] = {}
        for role in self.roles:
            ranked: list[tuple[tuple[float, int], int, Choice]] = []
            allowed = self.choices if self.sums is None else self.sums.choices(role, self.choices, self.axis.size)
            for number, choice in enumerate(allowed):
                if choice == "vocabulary" and any(other == "column" for _, _, other in ranked):
                    continue  # of a product, it is the same
                found = self.estimate(with_choice(assignment, role, choice))
                if found is not None:
                    ranked.append((found.order, number, choice))
            self._possible[role] = [choice for _, _, choice in ranked]
            if ranked:
                assignment[role] = min(ranked)[2]
        return assignment

    def _flipped(self, assignment: dict[Role, Choice]) -> dict[Role, Choice]:
        best = self.estimate(assignment)
        assert best is not None, "each step of the greedy search was possible"
        # What does not fit the device is made no larger.
        most_bytes = max(best.weight_bytes, min(best.weight_bytes * ROOM, self.base.machine.device.memory))
        for _ in range(_MOST_ROUNDS):
            before = dict(assignment)
            for role in self.roles:
                for other in self._others(assignment, role):
                    found = self.estimate(other)
                    if found is None or found.weight_bytes > most_bytes:
                        continue
                    fewer = self.sparse and len(other) < len(assignment)
                    if found.order < best.order or (fewer and is_as_cheap(found, best)):
                        assignment, best = other, found
            if assignment == before:
                break
        return assignment

    def _others(self, assignment: dict[Role, Choice], role: Role) -> list[dict[Role, Choice]]:
        own = assignment.get(role)
        others = [with_choice(assignment, role, choice) for choice in self._possible[role] if choice != own]
        whole: dict[Role, Choice] = {each: choice for each, choice in assignment.items() if each != role}
        return [*others, whole] if own is not None and whole else others  # something is split always


def is_as_cheap(one: Estimate, other: Estimate) -> bool:
    """Whether two plans differ in nothing but the order in which times are added up."""
    return one.collectives == other.collectives and math.isclose(one.order[0], other.order[0], rel_tol=_SAME)


def with_choice(assignment: Assignment, role: Role, choice: Choice) -> dict[Role, Choice]:
    """Returns an assignment in which a role has the choice."""
    return {**assignment, role: choice}


def _entries(role: Role, choice: Choice) -> list[PlanEntry]:
    return [PlanEntry(pattern, choice) for pattern in role.patterns]
