"""Splits a program among the ranks of a mesh and compares all of them with one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowerkit.dialect.context import parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.rewriting import erase_dead, main_block, operations
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.mesh.state_parts import own_slices
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut
from sharding_graphs import Graph, Mesh, input_names
from sharding_maker import Array, shared_context

TOLERANCE = 2e-4
"""Of the largest element of an output: sums are made in another order."""


@dataclass(frozen=True)
class Outcome:
    """How one program ended.

    Attributes:
        kind: ``passed``, ``refused``, ``wrong`` or ``crashed``.
        detail: what differs, or what was raised.
        collectives: how many the program has.
        cut: how many states ranks have in parts.
    """

    kind: str
    detail: str = ""
    collectives: int = 0
    cut: int = 0

    @property
    def failed(self) -> bool:
        """Whether somebody has to look at it."""
        return self.kind in ("wrong", "crashed")


def judge(graph: Graph, mesh: Mesh) -> Outcome:
    """Returns the outcome of all ranks in numpy."""
    module, store = parse_module(graph.text, shared_context()), store_of(graph)
    states = dict(graph.states)
    wanted = interpret(module, graph.inputs, store.get, states=states)
    try:
        plans = split(module, store, mesh, input_names(graph))
        if not module.operation.verify():
            return Outcome("crashed", "the module does not verify")
        sizes = dict(mesh.axes)
        places = list(np.ndindex(*sizes.values()))

        def part(name: str, rank: int) -> Array:
            shard = store.shard(name)
            data = store.get(name)
            return data if shard is None else shard.part(data, dict(zip(sizes, places[rank], strict=True)))

        mesh_axes = [MeshAxis(*axis) for axis in mesh.axes]
        cuts = cuts_of(plans)

        def own(states: Mapping[str, Array], rank: int) -> dict[str, Array]:
            place, found = dict(zip(sizes, places[rank], strict=True)), dict(states)
            for name, each in cuts.items():
                shape = list(states[name].shape)
                for cut in each:
                    shape[cut.dim] //= cut.parts
                found[name] = states[name][own_slices(shape, each, mesh_axes, place)]
            return found

        kept = [own(graph.states, rank) for rank in range(len(places))]
        ranks = interpret_mesh(module, graph.inputs, part, sizes, kept.__getitem__)
    except UnsupportedError as error:
        return Outcome("refused" if error.code == "LK4007" else "crashed", f"{error.code}: {error.message}")
    except Exception as error:
        return Outcome("crashed", f"{type(error).__name__}: {error}")
    for rank, found in enumerate(kept):
        mine = own(states, rank)
        outcome = compared([[found[name] for name in mine]], [mine[name] for name in mine])
        if outcome.failed:
            return replace(outcome, detail=f"{outcome.detail}; these are states of rank {rank}: {', '.join(mine)}")
    collectives = sum(len(plan.report.collectives) for plan in plans)
    return replace(compared(ranks, wanted), collectives=collectives, cut=len(cuts))


def cuts_of(plans: Sequence[ShardingPlan]) -> dict[str, list[StateCut]]:
    """Returns how each state is cut of which ranks have parts, axis by axis."""
    found: dict[str, list[StateCut]] = {}
    for plan in plans:
        for name, held in plan.report.states.items():
            found.setdefault(name, []).append(StateCut(plan.axis, held.axis, held.parts))
    return found


def store_of(graph: Graph) -> WeightStore:
    """Returns a store of the weights of a program."""
    store = WeightStore()
    for name, array in graph.weights.items():
        store.add(name, array)
    return store


def split(module: ir.Module, store: WeightStore, mesh: Mesh, names: Sequence[str]) -> list[ShardingPlan]:
    """Splits a program along each axis in turn, in place.

    Raises:
        UnsupportedError: LK4007, a plan asks for what cannot be.
    """
    plans: list[ShardingPlan] = []
    for (axis, ranks), entries in zip(mesh.axes, mesh.entries, strict=True):
        plan = ShardingPlan(axis, ranks, tuple(PlanEntry(*entry) for entry in entries.items()))  # pyright: ignore[reportArgumentType]
        plans.append(plan)
        ShardProgram().run(module, PassContext(store, sharding=plan, input_names=names))
    return plans


def compared(ranks: Sequence[Sequence[Array]], wanted: Sequence[Array]) -> Outcome:
    """Returns whether each rank gives what one device gives, and all of them the same bits."""
    for number, one in enumerate(wanted):
        limit = TOLERANCE * float(max(1.0, np.abs(one).max(initial=0)))
        for rank, found in enumerate(ranks):
            if found[number].shape != one.shape:
                return Outcome("wrong", f"output {number} of rank {rank} is {found[number].shape}, not {one.shape}")
            worst = float(np.abs(found[number].astype(np.float64) - one).max(initial=0))
            if not worst <= limit:
                return Outcome("wrong", f"output {number} of rank {rank} is off by {worst:.3g} (limit {limit:.3g})")
            if found[number].tobytes() != ranks[0][number].tobytes():
                return Outcome("wrong", f"output {number} of rank {rank} has other bits than rank 0")
    return Outcome("passed")


def allowed(graph: Graph, mesh: Mesh) -> Mesh:
    """Returns a plan without the entries that cannot be, by themselves or behind those that are left."""
    axes: list[dict[str, str]] = [{} for _ in mesh.axes]
    for number, entries in enumerate(mesh.entries):
        for pattern, choice in entries.items():
            tried = [dict(own) for own in axes]
            tried[number][pattern] = choice
            if not _is_refused(graph, Mesh(mesh.axes, tried)):
                axes = tried
    return Mesh(mesh.axes, axes, mesh.stages)


def _is_refused(graph: Graph, mesh: Mesh) -> bool:
    try:
        split(parse_module(graph.text, shared_context()), store_of(graph), mesh, input_names(graph))
    except UnsupportedError as error:
        return error.code == "LK4007"
    except Exception:
        return False  # a crash is to be seen
    return False


def smaller(graph: Graph, mesh: Mesh, kind: str) -> tuple[Graph, Mesh]:
    """Returns a smaller program and plan that fail in the same way."""
    changed = True
    while changed:
        changed = False
        for other_graph, other_mesh in _smaller_ones(graph, mesh):
            if judge(other_graph, other_mesh).kind == kind:
                graph, mesh, changed = other_graph, other_mesh, True
                break
    return graph, mesh


def _smaller_ones(graph: Graph, mesh: Mesh) -> list[tuple[Graph, Mesh]]:
    found: list[tuple[Graph, Mesh]] = []
    for number in range(len(mesh.axes) if len(mesh.axes) > 1 else 0):
        axes = [each for place, each in enumerate(mesh.axes) if place != number]
        found.append((graph, Mesh(axes, [each for place, each in enumerate(mesh.entries) if place != number])))
    for number, entries in enumerate(mesh.entries):
        for pattern in entries:
            fewer = [dict(each) for each in mesh.entries]
            del fewer[number][pattern]
            found.append((graph, Mesh(mesh.axes, fewer)))
    count = len(list(main_block(parse_module(graph.text, shared_context())).operations))
    found += [(replace(graph, text=text), mesh) for place in range(count) for text in _without(graph.text, place)]
    return found


def _without(text: str, place: int) -> list[str]:
    """Returns a program without one of its ops, whose operand of the same type takes its place; or of its results."""
    module = parse_module(text, shared_context())
    block = main_block(module)
    op = operations(block)[place]
    with module.context, ir.Location.unknown():
        if op.name == "func.return":
            if len(op.operands) < 2:
                return []
            return [made for number in range(len(op.operands)) if (made := _returning(text, place, number))]
        same = [value for value in op.operands if len(op.results) == 1 and value.type == op.results[0].type]
        for value in same[:1]:
            op.results[0].replace_all_uses_with(value)
            erase_dead(block)
            return [module.operation.get_asm(enable_debug_info=True)]
    return []


def _returning(text: str, place: int, number: int) -> str:
    """Returns a program with one of its results."""
    module = parse_module(text, shared_context())
    block = main_block(module)
    op = operations(block)[place]
    with module.context, ir.Location.unknown():
        kept = op.operands[number]
        from lowerkit.mlir import func

        with ir.InsertionPoint(op):
            func.ReturnOp([kept])
        op.erase()
        function = block.owner.operation
        kinds = [argument.type for argument in block.arguments]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, [kept.type]))
        erase_dead(block)
        return module.operation.get_asm(enable_debug_info=True) if module.operation.verify() else ""
