"""The roles of a model's modules: those with the same task in each layer have one choice.

Vocabulary
    role      modules whose paths differ in numbers alone, and whose weights are read by the same op, with as many
              outputs
    pattern   of a role: names its modules and no other one, as short as can be: ``*.q_proj``

Steps: collapse the numbers of a path to ``*``. Where modules of one pattern are not of one role, numbers are written
out: those of as few places of the path as can be. A number at the end of a path is written out where others are missing
beside it, as in ``mlp.0`` and ``mlp.2``: it numbers steps, not layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import operations, shape_of, weight_symbol
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import WeightStore
from lowerkit.spmd.auto.shorten import Counts

Task: TypeAlias = tuple[str, int]
"""The op that reads the weights of a module, and how many outputs it has."""


@dataclass(frozen=True)
class Role:
    """Modules with one choice.

    Attributes:
        patterns: name its modules; several where one would name others too.
        members: the paths of the modules in the shortened program.
        wide: its pattern also names modules of other roles, whose own patterns therefore stand first.
    """

    patterns: tuple[str, ...]
    members: tuple[str, ...]
    wide: bool = False

    @property
    def label(self) -> str:
        """For people."""
        return ", ".join(self.patterns[:2]) + (", ..." if len(self.patterns) > 2 else "")


def roles_of(module: ir.Module, weights: WeightStore, counts: Counts) -> list[Role]:
    """Returns the roles of a canonical program in the order in which it reads their weights."""
    tasks, paths = _tasks(module, weights)
    lists = _lists(counts.whole(tasks))
    families: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in tasks:
        families[_collapsed(path, _numbers(path, lists))].append(path)
    groups = [group for family in families.values() for group in _uniform(family, tasks, lists)]
    order = {path: number for number, path in enumerate(tasks)}
    groups.sort(key=lambda group: order[group[0]])
    whole = counts.whole(paths)
    return [_role(group, paths, whole, counts) for group in groups]


def module_roles(modules: Iterable[str], module: ir.Module, counts: Counts) -> list[Role]:
    """Returns the roles of all modules of a program, with weights or without, in the order in which they run.

    Args:
        modules: of the whole program.
        module: the shortened one.
        counts: what stands for what.
    """
    there = {describe(op).module_path for op in _all_operations(module)}
    paths = [path for path in modules if path and counts.stand_in(path) in there]
    short = [path for path in paths if path in there]
    lists = _lists(paths)
    families: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in short:
        families[_collapsed(path, _numbers(path, lists))].append(path)
    return [_role(group, short, paths, counts) for group in families.values()]


def _tasks(module: ir.Module, weights: WeightStore) -> tuple[dict[str, set[Task]], list[str]]:
    """Returns what the weights of each module are read by, and the paths of all modules.

    Of a module with several weights, each has a task of its own, by the weight's name.
    """
    choices = Choices(ShardingPlan("", 1), weights)
    found: list[tuple[str, str, Task]] = []
    paths: dict[str, None] = {}
    for op in _all_operations(module):
        modules, names = choices.named(op)
        own = [path for path in modules if path]
        paths |= dict.fromkeys(own)
        read = [value for value in op.operands if weight_symbol(value) is not None and len(shape_of(value)) > 1]
        if read and own and op.name.startswith("lk."):
            found.append((own[-1], names[0], (op.name, _outputs(op, read[0]))))
    several = {path for path, name, _ in found if any(other != name for own, other, _ in found if own == path)}
    tasks: defaultdict[str, set[Task]] = defaultdict(set)
    for path, name, task in found:
        tasks[name if path in several else path].add(task)
    return tasks, [*paths, *(name for path, name, _ in found if path in several)]


def _all_operations(module: ir.Module) -> list[ir.Operation]:
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    return [op for function in functions for op in operations(function.regions[0].blocks[0])]


def _outputs(op: ir.Operation, weight: ir.Value) -> int:
    return shape_of(weight)[0] if "conv" in op.name else shape_of(op.results[0])[-1]


def _lists(paths: Iterable[str]) -> set[str]:
    """Returns the paths below which modules are numbered without a gap, two of them at least."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for path in paths:
        parent, _, name = path.rpartition(".")
        if name.isdecimal():
            numbers[parent].add(int(name))
    return {parent for parent, found in numbers.items() if found == set(range(max(len(found), 2)))}


def _numbers(path: str, lists: set[str]) -> list[int]:
    """Returns the places of the numbers of a path that may be collapsed."""
    names = path.split(".")
    last = len(names) - 1
    listed = path.rpartition(".")[0] in lists
    return [place for place, name in enumerate(names) if name.isdecimal() and (place < last or listed)]


def _collapsed(path: str, places: Iterable[int]) -> tuple[str, ...]:
    """Returns the parts of a path, ``*`` in the place of its numbers at ``places``."""
    return tuple("*" if place in places else name for place, name in enumerate(path.split(".")))


def _uniform(family: Sequence[str], tasks: Mapping[str, set[Task]], lists: set[str]) -> list[list[str]]:
    """Returns the modules of one collapsed path as groups with one task, by the fewest places of numbers."""
    places = _numbers(family[0], lists)
    for count in range(len(places) + 1):
        found: list[list[list[str]]] = []
        for written in combinations(reversed(places), count):
            groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
            for path in family:
                groups[_collapsed(path, set(places) - set(written))].append(path)
            if all(tasks[path] == tasks[group[0]] for group in groups.values() for path in group):
                found.append(list(groups.values()))
        if found:
            return min(found, key=len)
    return [[path] for path in family]


def _role(group: Sequence[str], paths: Sequence[str], whole: Sequence[str], counts: Counts) -> Role:
    """Returns the role of modules, with the shortest pattern that names them.

    Args:
        group: the modules.
        paths: of all modules of the shortened program.
        whole: of all modules of the whole one.
        counts: what stands for what.
    """
    pieces = [path.split(".") for path in group]
    parts = ["*" if len(set(names)) > 1 else names[0] for names in zip(*pieces, strict=True)]
    ends = [parts[place:] for place in range(len(parts) - 1, 0, -1)]
    candidates = ["*." + ".".join(end) for end in ends if end[0] != "*" and not end[0].isdecimal()]
    candidates.append(".".join(parts))
    members, wanted = set(group), set(counts.whole(group))
    for pattern in candidates:
        if _named(pattern, paths) == members and _named(pattern, whole) == wanted:
            return Role((pattern,), tuple(group))
    # A star also stands for several parts of a path, so the modules that are named beside lie deeper.
    named = _named(candidates[-1], whole)
    if wanted <= named and all(path.count(".") >= len(parts) for path in named - wanted):
        return Role((candidates[-1],), tuple(group), wide=True)
    return Role(tuple(sorted(wanted, key=_by_number)), tuple(group))


def _by_number(path: str) -> list[tuple[int, str]]:
    return [(int(name), "") if name.isdecimal() else (0, name) for name in path.split(".")]


def _named(pattern: str, paths: Iterable[str]) -> set[str]:
    entry = PlanEntry(pattern, "replicate")
    return {path for path in paths if entry.names(path)}
