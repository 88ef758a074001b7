"""Two short programs in the place of one with many alike layers: one with a few of them, and one with one more.

What one more layer adds to the plan of a program, all others add, too (:mod:`lowerkit.spmd.cost.stretch`): a program
of 126 layers is planned by one of three and one of four.

Vocabulary
    stack   modules that are numbered below one path: ``model.layers.0``, ``model.layers.1``, ...
    alike   layers with the same ops, attributes, types and paths inside, in one stage, with the plan's same choices
    wiring  where the operands of a layer come from: an op of itself, of the layer before it, or from outside of all

Steps:
    1. take the outermost stack with the most ops;
    2. group its layers that are alike; of a group, all but a few go: those in the middle;
    3. let who reads a layer that goes read the last one before it that stays, and erase it.
Nothing is shortened where a layer reads others than the one before it, where something behind the stack reads a layer
that goes, where layers of one group are wired differently, or where groups of one stage lose different numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import captured_values, main_block, operations
from lowerkit.passes.shard.plan import MeshPlan, PlanEntry, ShardingPlan, StageEntry, StagePlan
from lowerkit.program.locations import origin_of
from lowerkit.program.program import Program
from lowerkit.spmd.auto.shorten import PlacedOp, layers_of, prefixes, read_instead, stacks_of

KEPT = 3
"""Layers of a group that stay in the short program: the first one, one like all others, and the last one."""

LEAST = 2 * KEPT + 2
"""Layers of a group from which on two short programs are less work than the whole one."""

_NAMES = ("lk.weight", "lk.state_read", "lk.state_write")


@dataclass(frozen=True)
class AlikeLayers:
    """Short programs that say what a long one takes.

    Attributes:
        short, longer: with :data:`KEPT` of the alike layers of each stage, and with one more.
        plans: of both; entries that name what is gone are left out.
        missing: by stage, how many layers of each group the short program lacks.
        left_out: how many layers the short program lacks in all.
    """

    short: Program
    longer: Program
    plans: tuple[MeshPlan | None, MeshPlan | None]
    missing: Mapping[int, int]
    left_out: int


def alike_layers(program: Program, plan: MeshPlan | None) -> AlikeLayers | None:
    """Returns the short programs of a captured program; None where it has no alike layers that could go.

    Args:
        program: before it is raised; it is not changed.
        plan: by which it is to be split; None for one device.
    """
    if program.stage != "captured" or len(list(program.module.body.operations)) != 1:
        return None
    short, longer = (replace(program.copy(), weights=program.weights.fork()) for _ in range(2))
    plans: list[MeshPlan | None] = []
    missing: dict[int, int] = {}
    left_out = 0
    for own, kept in ((short, KEPT), (longer, KEPT + 1)):
        stack = _largest_stack(own.module)
        groups = None if stack is None else _Groups(stack, plan).by_stage()
        if stack is None or not groups:
            return None
        missing = {stage: len(each[0]) - KEPT for stage, each in groups.items()}
        left_out = sum(len(group) - KEPT for each in groups.values() for group in each)
        before = _names(own.module)
        stack.erase([group for each in groups.values() for group in each], kept)
        left = _names(own.module)
        states = [spec for spec in own.signature.states if spec.name in left or spec.name not in before]
        own.signature = msgspec.structs.replace(own.signature, states=states)
        plans.append(None if plan is None else _restricted(plan, before - left, left))
    return AlikeLayers(short, longer, (plans[0], plans[1]), missing, left_out)


@dataclass(frozen=True)
class _Stack:
    """A stack.

    Attributes:
        layers: path of each -> its ops, both in program order.
        others: the ops around the stack.
    """

    layers: Mapping[str, Sequence[PlacedOp]]
    others: Sequence[ir.Operation]

    def erase(self, groups: Sequence[Sequence[str]], kept: int) -> None:
        """Leaves of each group the first ones and the last one, ``kept`` in all."""
        gone: set[str] = set()
        for group in groups:
            for layer in group[kept - 1 : -1]:
                read_instead(self.layers[layer], self.layers[group[kept - 2]])
                gone.add(layer)
        for layer, ops in reversed(list(self.layers.items())):
            for op, _ in reversed(ops) if layer in gone else ():
                op.erase()


def _largest_stack(module: ir.Module) -> _Stack | None:
    """Returns the outermost stack with the most ops, if there is one."""
    ops = [(op, origin_of(op.location).module) for op in operations(main_block(module))]
    stacks = stacks_of(path for _, path in ops)
    outermost = [stack for stack in stacks if not any(_is_below(stack, other) for other in stacks)]
    found = [layers_of(stack, ops) for stack in outermost]
    largest = max(found, key=lambda layers: sum(map(len, layers.values())), default=None)
    if largest is None:
        return None
    return _Stack(largest, [op for op, path in ops if not any(prefix in largest for prefix in prefixes(path))])


def _is_below(stack: str, other: str) -> bool:
    return stack != other and (not other or stack.startswith(f"{other}."))


class _Groups:
    """Sorts the layers of a stack."""

    def __init__(self, stack: _Stack, plan: MeshPlan | None) -> None:
        self._layers, self._plan = stack.layers, plan
        self._places = {layer: place for place, layer in enumerate(stack.layers)}
        # Result of a layer's op -> the place of its layer, of the op in it, and its own number.
        self._owners: dict[ir.Value, tuple[int, int, int]] = {}
        for place, ops in enumerate(stack.layers.values()):
            for number, (op, _) in enumerate(ops):
                for result, value in enumerate(op.results):
                    self._owners[value] = (place, number, result)
        read = (value for op in stack.others for value in (*op.operands, *captured_values(op)))
        self._read_outside = {self._owners[value][0] for value in read if value in self._owners}
        readers: defaultdict[str, set[str]] = defaultdict(set)
        for layer, ops in stack.layers.items():
            for op, _ in ops:
                readers[_symbol(op)].add(layer)
        self._own = {symbol for symbol, layers in readers.items() if len(layers) == 1}
        self._chosen: dict[str, tuple[object, ...]] = {}

    def by_stage(self) -> dict[int, list[list[str]]]:
        """Returns the groups from which layers may go, by the stage that runs them; empty where that cannot be."""
        groups: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
        for layer, ops in self._layers.items():
            groups[tuple(self._appearance(op, path, layer) for op, path in ops)].append(layer)
        found: defaultdict[int, list[list[str]]] = defaultdict(list)
        for group in (each for each in groups.values() if len(each) >= LEAST):
            stages = {stage for _, path in self._layers[group[0]] if (stage := self._stage(path)) is not None}
            if len(stages) > 1 or not self._can_go(group):
                return {}
            found[stages.pop() if stages else 0].append(group)
        return found if all(map(self._go_together, found.values())) else {}

    def _can_go(self, group: Sequence[str]) -> bool:
        """Whether all layers of a group but the first of the stack are wired alike, and nothing else reads them."""
        wirings = {self._wiring(layer) for layer in group if self._places[layer]}
        last = len(self._layers) - 1
        inner = {place for layer in group if (place := self._places[layer]) != last}
        return len(wirings) == 1 and None not in wirings and not inner & self._read_outside

    def _go_together(self, groups: Sequence[Sequence[str]]) -> bool:
        """Whether the layers that go from groups of one stage stand one behind the other, as many of each group."""
        gone = sorted(self._places[layer] for group in groups for layer in group[KEPT - 1 : -1])
        return len(set(map(len, groups))) == 1 and gone == list(range(gone[0], gone[0] + len(gone)))

    def _appearance(self, op: ir.Operation, path: str, layer: str) -> tuple[object, ...]:
        symbol = _symbol(op)
        attributes = tuple(f"{name}={op.attributes[name]}" for name in op.attributes if name != "symbol")
        own = "" if symbol in self._own else symbol
        types = tuple(str(result.type) for result in op.results)
        return (op.name, path.removeprefix(layer), types, attributes, own, self._choices(path), self._choices(symbol))

    def _wiring(self, layer: str) -> tuple[object, ...] | None:
        """Returns where each operand comes from; None where a layer further back is read, or an op has regions."""
        own = self._places[layer]
        found: list[object] = []
        for op, _ in self._layers[layer]:
            if len(op.regions):
                return None
            for operand in op.operands:
                place, *source = self._owners.get(operand, (own + 1, str(operand.type)))
                if place < own - 1:
                    return None
                found.append((own - place, *source))
        return tuple(found)

    def _choices(self, name: str) -> tuple[object, ...]:
        """What the plan says of the modules or the weight with this name."""
        if name not in self._chosen:
            plan = self._plan
            axes = () if plan is None else tuple(axis.entry_for([name]) for axis in plan.axes if name)
            self._chosen[name] = (*axes, self._stage(name))
        return self._chosen[name]

    def _stage(self, path: str) -> int | None:
        entry = self._plan.stages.stage_of(path) if self._plan is not None and self._plan.stages is not None else None
        return None if entry is None else entry.stage


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["symbol"]).value if op.name in _NAMES else ""


def _names(module: ir.Module) -> set[str]:
    """Returns what a plan may name: paths of modules, weights; and the states."""
    ops = operations(main_block(module))
    return {origin_of(op.location).module for op in ops} | {_symbol(op) for op in ops}


def _restricted(plan: MeshPlan, gone: set[str], left: set[str]) -> MeshPlan:
    """Returns a plan without the entries that name nothing but what is gone."""

    def kept(entry: PlanEntry | StageEntry) -> bool:
        return any(map(entry.names, left)) or not any(map(entry.names, gone))

    axes = tuple(ShardingPlan(axis.axis, axis.ranks, tuple(filter(kept, axis.entries))) for axis in plan.axes)
    stages = plan.stages
    if stages is not None:
        entries = tuple(filter(kept, stages.entries))
        stages = StagePlan(stages.axis, stages.ranks, entries, stages.micro_batches)
    return replace(plan, axes=axes, stages=stages)
