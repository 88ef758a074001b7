"""What is split along one axis of a mesh: by the name of the axis, or what is cheapest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerkit.passes.shard.plan import Choice, ShardingPlan
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.draft import Draft
from lowerkit.spmd.auto.fixed_sums import FixedSums
from lowerkit.spmd.auto.reasons import why_split, why_whole
from lowerkit.spmd.auto.roles import Role, module_roles, roles_of
from lowerkit.spmd.auto.search import Search, is_as_cheap, with_choice
from lowerkit.spmd.auto.trial import Trial


@dataclass(frozen=True)
class Kind:
    """What may be split along an axis.

    Attributes:
        choices: that it takes.
        roles: what these are for, by the draft and the program as it is split along the axes before.
        flips: what can be split may stay whole where that is cheaper; else all of it is split.
        sparse: entries that change nothing are left out, as what others split goes on behind them.
    """

    choices: tuple[Choice, ...]
    roles: Callable[[Draft, Trial], list[Role]]
    flips: bool = True
    sparse: bool = False


@dataclass(frozen=True)
class AxisChoice:
    """What was chosen for an axis.

    Attributes:
        plan: of the axis; its entries may be none.
        trial: the program split so.
        reasons: for people.
    """

    plan: ShardingPlan
    trial: Trial
    reasons: tuple[str, ...]


def _weights(draft: Draft, trial: Trial) -> list[Role]:
    del draft
    return roles_of(trial.module, trial.weights, trial.counts)


def _modules(draft: Draft, trial: Trial) -> list[Role]:
    return module_roles(draft.paths, trial.module, trial.counts)


def _inputs(draft: Draft, trial: Trial) -> list[Role]:
    """Inputs with one leading extent are split together."""
    del trial
    together: defaultdict[str, list[str]] = defaultdict(list)
    for name, extent in draft.inputs.items():
        if extent is not None:
            together[extent].append(name)
    return [Role(tuple(names), tuple(names)) for names in together.values()]


KINDS = {
    "tp": Kind(("column", "row", "vocabulary"), _weights),
    "dp": Kind(("batch",), _inputs, flips=False),
    "ep": Kind(("expert",), _weights),
    "sp": Kind(("sequence",), _modules, sparse=True),
}
"""By the name of an axis, without digits behind it."""

STAGES = "pp"
"""The name of an axis of stages."""


def choose_along(axis: MeshAxis, draft: Draft, trial: Trial, sums: FixedSums | None = None) -> AxisChoice | None:
    """Returns what to split along an axis; None where nothing can be.

    Args:
        axis: whose name says what kind of things are split; with another name, the cheapest kind is taken.
        draft: what is split.
        trial: as it is split along the axes before.
        sums: what may be summed over ranks; None: whatever is cheapest.
    """
    own = KINDS.get(axis.name.rstrip("0123456789"))
    found = [_choose(axis, kind, draft, trial, sums) for kind in ([own] if own is not None else KINDS.values())]
    return min((each for each in found if each is not None), key=lambda each: each.trial.estimate.order, default=None)


def _choose(axis: MeshAxis, kind: Kind, draft: Draft, trial: Trial, sums: FixedSums | None) -> AxisChoice | None:
    search = Search(trial, axis, kind.roles(draft, trial), kind.choices, kind.sparse, sums)
    assignment = search.run(flips=kind.flips)
    chosen = search.trial(assignment)
    if not assignment or chosen is None:
        return None
    reasons = tuple(f"{axis.name}: {line}" for line in _reasons(search, assignment))
    return AxisChoice(search.plan(assignment), chosen, reasons)


def _reasons(search: Search, assignment: dict[Role, Choice]) -> Sequence[str]:
    own = search.estimate(assignment)
    assert own is not None, "the search returns what it could estimate"
    lines: list[str] = []
    for role in search.roles:
        choice = assignment.get(role)
        if choice is not None:
            whole = search.estimate({each: other for each, other in assignment.items() if each != role})
            lines.append(why_split(role.label, choice, search.axis.size, own, whole))
        elif possible := search.possible(role):
            tried = [(search.estimate(with_choice(assignment, role, other)), other) for other in possible]
            known = [(each, other) for each, other in tried if each is not None]
            split, choice = min(known, key=lambda entry: entry[0].order, default=(None, possible[0]))
            if split is None or not is_as_cheap(split, own):
                lines.append(why_whole(role.label, own, split, choice))
    return lines
