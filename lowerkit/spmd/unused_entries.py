"""What a plan names and does not split: a typing error would pass for a plan."""

from __future__ import annotations

import difflib

from lowerkit.errors import UsageError
from lowerkit.passes.shard.plan import MeshPlan, PlanEntry, ShardingPlan

_SHOWN = 3
_MOST_SHOWN = 6


def require_used(plan: MeshPlan) -> None:
    """Raises where an entry of a plan split nothing, once the program is sharded.

    Raises:
        UsageError: LK1011, with every such entry and the nearest module.
    """
    problems: list[str] = []
    for axis in plan.axes:
        unused = [entry for entry in axis.entries if entry not in axis.report.used]
        problems += [reason for entry in unused if (reason := _why_unused(axis, entry)) is not None]
    if plan.sums is not None:
        used = {entry for each in plan.summing for entry in each.report.used}
        unused = [entry for entry in plan.sums.entries if entry.choice == "row" and entry not in used]
        problems += [reason for entry in unused if (reason := _why_unused(plan.sums, entry)) is not None]
    if problems:
        raise UsageError(
            "LK1011",
            f"the plan names what it does not split: {problems[0]}",
            details=problems[1:],
            hint="lowerkit compile MODEL --compile-to canonical writes the IR, where each op has its module",
        )


def _why_unused(plan: ShardingPlan, entry: PlanEntry) -> str | None:
    if entry.choice == "batch":
        inputs = list(plan.report.inputs)
        near = difflib.get_close_matches(entry.pattern, inputs, _SHOWN, cutoff=0.5) or inputs[:_MOST_SHOWN]
        return f"{entry.pattern!r} names no input of the model; there are: {', '.join(map(repr, near))}"
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
