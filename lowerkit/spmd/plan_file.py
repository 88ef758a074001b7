"""A plan as a user writes it: patterns of module paths and what to do with their weights, as JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerkit.errors import InputError, UsageError
from lowerkit.passes.shard.plan import CHOICES, PlanEntry, ShardingPlan
from lowerkit.spmd.mesh import Mesh

_MOST_BYTES = 1 << 20
_SHOWN = 3
_MOST_SHOWN = 6


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
        raise InputError("LK1001", f"the plan {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError("LK1002", f"the plan {path} is no JSON: {error}", hint=_EXAMPLE) from None
    if not isinstance(entries, _Pairs) or len(data) > _MOST_BYTES:
        raise InputError("LK1002", f"the plan {path} is no JSON object of patterns and choices", hint=_EXAMPLE)
    return list(entries)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that keeps its order, and what it says twice."""


_EXAMPLE = 'a plan reads {"*.q_proj": "column", "*.o_proj": "row", "*.embed_tokens": "vocabulary"}'


def sharding_of(mesh: str | None, plan: Path | Mapping[str, Any] | None) -> ShardingPlan | None:
    """Returns the sharding that a user names; None where there is neither a mesh nor a plan.

    Raises:
        UsageError: LK1011, one of them is missing or wrong.
        InputError: LK1001/LK1002, as :func:`read_plan`.
    """
    if mesh is None and plan is None:
        return None
    if mesh is None or plan is None:
        given, missing = ("a mesh", "plan") if plan is None else ("a plan", "mesh")
        raise UsageError(
            "LK1011",
            f"{given} is given and no {missing}",
            hint="give both: --mesh tp=2 --shard plan.json says among how many ranks, and how",
        )
    parsed = Mesh.parse(mesh)
    return make_plan(parsed, read_plan(plan) if isinstance(plan, Path) else plan)


def make_plan(mesh: Mesh, entries: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> ShardingPlan:
    """Makes the plan for a mesh.

    Raises:
        UsageError: LK1011, an entry says what is no choice, or a pattern stands twice; all of them at once.
    """
    pairs = list(entries.items()) if isinstance(entries, Mapping) else list(entries)
    patterns = [pattern for pattern, _ in pairs]
    problems = [f"{pattern!r} stands twice" for pattern in dict.fromkeys(patterns) if patterns.count(pattern) > 1]
    problems += [_unknown_choice(pattern, choice) for pattern, choice in pairs if choice not in CHOICES]
    problems += ["a pattern is empty"] if "" in patterns else []
    if not pairs:
        problems.append("it has no entry")
    if problems:
        raise UsageError("LK1011", f"the plan is wrong: {problems[0]}", details=problems[1:], hint=_EXAMPLE)
    return ShardingPlan(mesh.axis.name, mesh.axis.size, tuple(PlanEntry(*pair) for pair in pairs))


def _unknown_choice(pattern: str, choice: object) -> str:
    near = difflib.get_close_matches(str(choice), CHOICES, 1, cutoff=0.3)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{pattern!r} is {choice!r}, which is none of {', '.join(CHOICES)}{meant}"


def require_used(plan: ShardingPlan) -> None:
    """Raises where an entry of a plan split nothing, once the program is sharded: a typing error would pass for a plan.

    Raises:
        UsageError: LK1011, with every such entry and the nearest module.
    """
    unused = [entry for entry in plan.entries if entry not in plan.report.used]
    problems = [reason for entry in unused if (reason := _why_unused(plan, entry)) is not None]
    if problems:
        raise UsageError(
            "LK1011",
            f"the plan names what it does not split: {problems[0]}",
            details=problems[1:],
            hint="lowerkit compile MODEL --compile-to canonical writes the IR, where each op has its module",
        )


def _why_unused(plan: ShardingPlan, entry: PlanEntry) -> str | None:
    modules = [path for path in plan.report.modules if entry.names(path)]
    if modules and entry.choice == "replicate":
        return None
    if not modules:
        return f"{entry.pattern!r} names no module of the model{_nearest(plan, entry.pattern)}"
    first = next((other for other in plan.entries if any(map(other.names, modules))), entry)
    if first != entry:
        return f"{entry.pattern!r} comes behind {first.pattern!r}, which names {modules[0]!r} first"
    kind = "a table that is looked up, or a product" if entry.choice == "vocabulary" else "a product with a weight"
    return f"{entry.pattern!r} names {modules[0]!r}, which has no {kind.removeprefix('a ')}"


def _nearest(plan: ShardingPlan, pattern: str) -> str:
    paths = list(plan.report.modules)
    names = {f"*.{path.rpartition('.')[2]}": None for path in paths} | dict.fromkeys(paths)
    near = difflib.get_close_matches(pattern, list(names), _SHOWN, cutoff=0.5)
    shown = near or list(names)[:_MOST_SHOWN]
    return f"; {'near' if near else 'there are'}: {', '.join(map(repr, shown)) or 'none with weights'}"
