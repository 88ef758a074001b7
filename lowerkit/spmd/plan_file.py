"""A plan as a user writes it: patterns of module paths and what to do with their weights, as JSON.

One object of patterns and choices for a mesh of one axis; for several, one for each by the name of the axis.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerkit.errors import InputError, UsageError
from lowerkit.passes.shard.plan import CHOICES, MeshPlan, PlanEntry, ShardingPlan, StageEntry, StagePlan
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.mesh import Mesh

AUTO = "auto"
"""What a user says in the place of a plan, to have it chosen."""

MICRO_BATCHES = "micro-batches"
"""The key of a pipeline axis beside its patterns; no module has this name."""

_MOST_BYTES = 1 << 20
_MOST_MICRO_BATCHES = 1024

Entries = Mapping[str, Any] | Sequence[tuple[str, Any]]


def read_plan(path: Path) -> list[tuple[str, Any]]:
    """Reads the entries of a plan from a file, in their order.

    Raises:
        InputError: LK1001/LK1002, the file cannot be read, or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        entries = json.loads(data.decode(), object_pairs_hook=_Pairs)
    except OSError as error:
        hint = "--shard auto chooses a plan" if path.name.startswith("auto") else ""
        raise InputError("LK1001", f"the plan {path} cannot be read: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError("LK1002", f"the plan {path} is no JSON: {error}", hint=EXAMPLE_PLAN) from None
    if not isinstance(entries, _Pairs) or len(data) > _MOST_BYTES:
        raise InputError("LK1002", f"the plan {path} is no JSON object of patterns and choices", hint=EXAMPLE_PLAN)
    return list(entries)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that keeps its order, and what it says twice."""


EXAMPLE_PLAN = (
    'a plan reads {"*.q_proj": "column", "*.o_proj": "row", "*.embed_tokens": "vocabulary"}; for a mesh of several '
    'axes {"tp": {"*.q_proj": "column"}, "pp": {"*.layers.0": 0, "*.layers.1": 1}, "dp": {"*": "batch"}}'
)


def make_plan(mesh: Mesh, entries: Entries, *, invariant: bool = False) -> MeshPlan:
    """Makes the plan for a mesh.

    With ``invariant`` it may name an axis that the mesh lacks: what ranks along that would sum is summed in the same
    order on each, so that one plan serves meshes with the axis and without it.

    Raises:
        UsageError: LK1011, an entry says what is no choice, or a pattern stands twice; all of them at once.
    """
    pairs = _pairs(entries)
    by_axis = _by_axis(mesh, pairs)
    problems: list[str] = [] if pairs else ["it has no entry"]
    known = {axis.name: axis for axis in mesh.axes}
    sums: ShardingPlan | None = None
    for name, own in by_axis:
        if name in known:
            continue
        if invariant and sums is None and not _choice_problems(own):
            sums = ShardingPlan(name, 1, tuple(PlanEntry(*pair) for pair in own))
        else:
            problems.append(f"{name!r} is no axis of the mesh {mesh}{_nearest(name, list(known))}")
    given = dict(by_axis)
    problems += [f"it says nothing of the axis {name!r}" for name, axis in known.items() if _says_nothing(axis, given)]
    axes: list[ShardingPlan] = []
    stages: StagePlan | None = None
    for axis in mesh.axes:
        own = given.get(axis.name, [])
        where = f"{axis.name}: " if len(mesh.axes) > 1 else ""
        if own and all(_is_stage(choice) for _, choice in own):
            problems += [f"{where}{text}" for text in _stage_problems(axis, own)]
            if stages is not None:
                problems.append(f"{stages.axis!r} and {axis.name!r} are both axes of stages; there is one pipeline")
            if not problems:
                stages = _stage_plan(axis, own)
            continue
        problems += [f"{where}{text}" for text in _choice_problems(own)]
        if not problems and own:
            axes.append(ShardingPlan(axis.name, axis.size, tuple(PlanEntry(*pair) for pair in own)))
    if problems:
        raise UsageError("LK1011", f"the plan is wrong: {problems[0]}", details=problems[1:], hint=EXAMPLE_PLAN)
    sizes = tuple((axis.name, axis.size) for axis in mesh.axes)
    return MeshPlan(sizes, tuple(axes), stages, invariant, sums=sums)


def entries_of(plan: MeshPlan) -> dict[str, dict[str, Any]]:
    """Returns a plan as :func:`make_plan` takes it, by axis: what a file of it holds."""
    by_axis: dict[str, dict[str, Any]] = {
        each.axis: {entry.pattern: entry.choice for entry in each.entries} for each in plan.axes
    }
    if plan.stages is not None:
        own = by_axis[plan.stages.axis] = {entry.pattern: entry.stage for entry in plan.stages.entries}
        if plan.stages.micro_batches > 1:
            own[MICRO_BATCHES] = plan.stages.micro_batches
    found = {name: by_axis[name] for name, _ in plan.mesh if name in by_axis}
    sums = plan.sums
    if sums is not None and sums.axis not in dict(plan.mesh):
        found[sums.axis] = {entry.pattern: entry.choice for entry in sums.entries}
    return found


def _pairs(entries: Entries) -> list[tuple[str, Any]]:
    return list(entries.items()) if isinstance(entries, Mapping) else list(entries)


def _by_axis(mesh: Mesh, pairs: list[tuple[str, Any]]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Returns the entries of each axis; a plan without axes is that of the only one."""
    if pairs and all(isinstance(value, (_Pairs, Mapping)) for _, value in pairs):
        return [(name, _pairs(value)) for name, value in pairs]
    first, *further = mesh.axes
    if further:
        raise UsageError(
            "LK1011",
            f"the plan does not say which axis of the mesh {mesh} its patterns are for",
            hint=EXAMPLE_PLAN,
        )
    return [(first.name, pairs)]


def _says_nothing(axis: MeshAxis, given: Mapping[str, list[tuple[str, Any]]]) -> bool:
    return axis.size > 1 and bool(given) and not given.get(axis.name)


def _is_stage(choice: object) -> bool:
    return isinstance(choice, int) and not isinstance(choice, bool)


def _choice_problems(pairs: list[tuple[str, Any]]) -> list[str]:
    patterns = [pattern for pattern, _ in pairs]
    problems = [f"{pattern!r} stands twice" for pattern in dict.fromkeys(patterns) if patterns.count(pattern) > 1]
    problems += [_unknown_choice(pattern, choice) for pattern, choice in pairs if choice not in CHOICES]
    problems += ["a pattern is empty"] if "" in patterns else []
    return problems


def _stage_problems(axis: MeshAxis, pairs: list[tuple[str, Any]]) -> list[str]:
    patterns = [pattern for pattern, _ in pairs]
    problems = [f"{pattern!r} stands twice" for pattern in dict.fromkeys(patterns) if patterns.count(pattern) > 1]
    problems += ["a pattern is empty"] if "" in patterns else []
    for pattern, stage in pairs:
        most = _MOST_MICRO_BATCHES if pattern == MICRO_BATCHES else axis.size - 1
        least = 1 if pattern == MICRO_BATCHES else 0
        if not _is_stage(stage) or not least <= stage <= most:
            problems.append(f"{pattern!r} is {stage!r}, expected a number from {least} to {most}")
    named = {stage for pattern, stage in pairs if pattern != MICRO_BATCHES}
    missing = [str(stage) for stage in range(axis.size) if stage not in named]
    if missing:
        problems.append(f"no module is named for stage {', '.join(missing)} of {axis.name}={axis.size}")
    return problems


def _stage_plan(axis: MeshAxis, pairs: list[tuple[str, Any]]) -> StagePlan:
    entries = tuple(StageEntry(pattern, stage) for pattern, stage in pairs if pattern != MICRO_BATCHES)
    return StagePlan(axis.name, axis.size, entries, dict(pairs).get(MICRO_BATCHES, 1))


def _unknown_choice(pattern: str, choice: object) -> str:
    return f"{pattern!r} is {choice!r}, which is none of {', '.join(CHOICES)}{_nearest(str(choice), CHOICES)}"


def _nearest(given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, 1, cutoff=0.3)
    return f"; did you mean {near[0]!r}?" if near else ""
