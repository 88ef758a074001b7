"""A model of many alike layers becomes one of few, which is lowered and split on trial in their place.

Vocabulary
    stack      modules that are numbered below one path: ``model.layers.0``, ``model.layers.1``, ...
    alike      layers with the same ops, results and paths inside, in the same order
    stand-in   the layer of a group of alike ones that counts for those that are removed, too

Steps, for each stack, outer ones first:
    1. group the layers that are alike;
    2. keep the first and the last layer of each group: the first reads what comes before the stack, the last reads a
       layer as all others do, and is the stand-in;
    3. let who reads a removed layer read the first one's value at the same place, and erase the layer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.program.locations import origin_of

PlacedOp: TypeAlias = tuple[ir.Operation, str]
"""An op and the path of its module."""

KEPT = 2
"""Layers of a group that stay."""


@dataclass
class Counts:
    """How many layers each layer of a shortened program stands for.

    Attributes:
        layers: path of a layer -> layers; a layer that is not here is itself.
        removed: path of a removed layer -> that of its stand-in.
    """

    layers: dict[str, int] = field(default_factory=dict[str, int])
    removed: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, path: str) -> int:
        """Returns how many modules of the whole program the module at ``path`` stands for."""
        return math.prod(self.layers.get(prefix, 1) for prefix in prefixes(path))

    def stand_in(self, path: str) -> str:
        """Returns the path of the module that stands for the one at ``path``, itself where it was kept."""
        for prefix in prefixes(path):
            other = self.removed.get(prefix)
            if other is not None:
                return self.stand_in(other + path.removeprefix(prefix))
        return path

    def whole(self, paths: Iterable[str]) -> list[str]:
        """Returns ``paths`` of a shortened program and those of all modules that they stand for."""
        found = list(paths)
        for layer, other in reversed(self.removed.items()):  # inner ones first
            found += [layer + path.removeprefix(other) for path in found if f"{path}.".startswith(f"{other}.")]
        return found


def prefixes(path: str) -> Iterator[str]:
    """Yields the paths of the modules around a module, outermost first, and its own."""
    end = path.find(".")
    while end >= 0:
        yield path[:end]
        end = path.find(".", end + 1)
    yield path


def shorten(module: ir.Module) -> Counts:
    """Removes alike layers from ``@main``, in place, and returns what stands for how many."""
    counts = Counts()
    ops = [(op, origin_of(op.location).module) for op in operations(main_block(module))]
    done: set[str] = set()
    while True:
        stacks = stacks_of(path for _, path in ops)
        stack = next((each for each in stacks if each not in done), None)
        if stack is None:
            return counts
        done.add(stack)
        ops = _shorten_stack(stack, ops, counts)


def stacks_of(paths: Iterable[str]) -> list[str]:
    """Returns the paths with enough numbered modules below them that some may go, outer ones first."""
    numbers: defaultdict[str, set[str]] = defaultdict(set)
    for path in dict.fromkeys(paths):
        for prefix in prefixes(path):
            parent, _, name = prefix.rpartition(".")
            if name.isdecimal():
                numbers[parent].add(name)
    found = [stack for stack, names in numbers.items() if len(names) > KEPT]
    return sorted(found, key=lambda stack: stack.count("."))


def _shorten_stack(stack: str, ops: list[PlacedOp], counts: Counts) -> list[PlacedOp]:
    """Returns the ops that are left."""
    layers = layers_of(stack, ops)
    groups: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for layer, members in layers.items():
        groups[tuple(_appearance(op, path, layer) for op, path in members)].append(layer)
    stand_ins: dict[str, str] = {}
    for group in (each for each in groups.values() if len(each) > KEPT):
        stand_ins.update(dict.fromkeys(group[1:-1], group[-1]))
        for layer in group[1:-1]:
            read_instead(layers[layer], layers[group[0]])
    left = [(op, path) for op, path in ops if not any(prefix in stand_ins for prefix in prefixes(path))]
    for layer in stand_ins:
        for op, _ in reversed(layers[layer]):
            op.erase()
    counts.removed.update(stand_ins)
    for other, times in Counter(stand_ins.values()).items():
        counts.layers[other] = times + 1
    return left


def read_instead(removed: Sequence[PlacedOp], first: Sequence[PlacedOp]) -> None:
    """Lets who reads an alike layer that is to be removed read the values of another one."""
    for (op, _), (own, _) in zip(removed, first, strict=True):
        for result, value in zip(op.results, own.results, strict=True):
            result.replace_all_uses_with(value)


def layers_of(stack: str, ops: list[PlacedOp]) -> Mapping[str, list[PlacedOp]]:
    """Returns the ops of each layer of a stack, in program order, with their paths."""
    start = f"{stack}." if stack else ""
    layers: defaultdict[str, list[PlacedOp]] = defaultdict(list)
    for op, path in ops:
        if path.startswith(start):
            name = path[len(start) :].partition(".")[0]
            if name.isdecimal():
                layers[start + name].append((op, path))
    return layers


def _appearance(op: ir.Operation, path: str, layer: str) -> tuple[object, ...]:
    return (op.name, path.removeprefix(layer), *(str(result.type) for result in op.results))
