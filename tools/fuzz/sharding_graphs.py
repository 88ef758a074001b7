"""Random small programs of canonical IR, with weights and module paths, and random plans for them.

Each step takes values from those that there are and adds one: products with weights and without, convolutions, norms,
attention, elementwise ops with broadcasts, views, reductions, look-ups, joins, residuals and states. Extents divide by
2, 3 and 4 often, and sometimes not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from lowerkit.mlir import func, ir
from lowerkit.passes.rewriting import erase_dead, operations
from lowerkit.program.locations import make_location, origin_of
from sharding_layers import LAYERS
from sharding_maker import FEATURES, Array, Maker, Step, shared_context
from sharding_moves import MOVES
from sharding_states import STATES

CHOICES = ("column", "row", "vocabulary", "expert", "replicate")
_STEPS: dict[str, tuple[int, Step]] = {**LAYERS, **MOVES, **STATES}


@dataclass
class Graph:
    """A program and what it runs on.

    Attributes:
        text: of the module, with locations.
        weights: by name.
        inputs: in the order of the arguments.
        modules: paths with weights, then those without.
        states: where they start, by name.
    """

    text: str
    weights: dict[str, Array]
    inputs: list[Array]
    modules: tuple[list[str], list[str]]
    states: dict[str, Array] = field(default_factory=dict[str, Array])


@dataclass
class Mesh:
    """How a program is split.

    Attributes:
        axes: with their sizes.
        entries: of each axis, pattern -> choice.
        stages: of each path of a module, in program order; for a program that is compiled.
    """

    axes: list[tuple[str, int]]
    entries: list[dict[str, str]]
    stages: dict[str, int] = field(default_factory=dict[str, int])


def random_graph(rng: random.Random) -> Graph:
    """Returns a program of a few steps."""
    return _graph(Maker(rng), rng.randint(2, 9))


def input_names(graph: Graph) -> list[str]:
    """Returns the names of the inputs of a program."""
    return [*("x", "y")[: len(graph.inputs) - 1], "ids"]


def random_mesh(rng: random.Random, graph: Graph) -> Mesh:
    """Returns one to three axes, each with a plan that may be silly."""
    count = rng.choices((1, 2, 3), (6, 4, 1))[0]
    axes = [(name, rng.choice((2, 2, 3, 4))) for name in rng.sample(("tp", "dp", "ep", "x"), count)]
    return Mesh(axes, [_random_entries(rng, graph) for _ in axes], _random_stages(rng, graph))


def _random_stages(rng: random.Random, graph: Graph) -> dict[str, int]:
    """Returns no stages, or two or three, each of the steps behind those of the one before."""
    numbers = sorted({int(path.split(".")[1]) for paths in graph.modules for path in paths})
    count = rng.choice((0, 2, 3))
    if not 0 < count <= len(numbers):
        return {}
    cuts = sorted(rng.sample(range(1, len(numbers)), count - 1))
    return {f"block.{number}.*": sum(place >= cut for cut in cuts) for place, number in enumerate(numbers)}


def _random_entries(rng: random.Random, graph: Graph) -> dict[str, str]:
    entries: dict[str, str] = {}
    kind = rng.random()
    if kind < 0.25:
        entries |= {name: "batch" for name in ("x", "y", "ids") if rng.random() < 0.8}
    if kind > 0.2 or not entries:
        favourite = rng.choice((("column", "row"), CHOICES))
        entries |= {path: rng.choice(favourite) for path in graph.modules[0] if rng.random() < 0.85}
    if kind > 0.8:
        entries |= {path: "sequence" for path in graph.modules[1] if rng.random() < 0.3}
    return entries or dict.fromkeys(graph.modules[0], "column")


def _graph(maker: Maker, steps: int) -> Graph:
    data = np.random.default_rng(maker.rng.randrange(1 << 30))
    batch = maker.rng.choice((1, 2, 2, 4, 6))
    shapes = [_input_shape(maker.rng, batch) for _ in range(maker.rng.choice((1, 1, 2)))]
    rows = [batch, maker.rng.choice((2, 3, 4, 8))]
    with shared_context(), ir.Location.unknown():
        module = ir.Module.create()
        kinds = [ir.RankedTensorType.get(shape, ir.F32Type.get()) for shape in shapes]
        kinds.append(ir.RankedTensorType.get(rows, ir.IntegerType.get_signless(64)))
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", (kinds, []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            *maker.values, maker.ids = block.arguments
            for number in range(steps):
                _step(maker, number)
            made = [value for value in maker.values if not isinstance(value.owner, ir.Block)] or maker.values
            returned = made[-1:] + [value for value in made[:-1] if maker.rng.random() < 0.1]
            func.ReturnOp(returned)
        erase_dead(block)
        there = {origin_of(op.location).module for op in operations(block)}
        kind = ir.FunctionType.get(kinds, [value.type for value in returned])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        assert module.operation.verify()
        text = module.operation.get_asm(enable_debug_info=True)
    inputs: list[Array] = [data.standard_normal(shape).astype(np.float32) for shape in shapes]
    inputs.append(data.integers(0, 6, rows, np.int64))
    for name, array in maker.weights.items():
        if array.dtype == np.int8:
            maker.weights[name] = data.integers(-7, 8, array.shape, np.int8)
            continue
        scale = 1.0 if array.ndim < 2 else 1.5 / np.sqrt(max(array.shape[-1], 2))
        maker.weights[name] = (data.standard_normal(array.shape) * scale).astype(np.float32)
    states = {name: data.standard_normal(array.shape).astype(np.float32) for name, array in maker.states.items()}
    weighted, others = ([path for path in paths if path in there] for paths in maker.inside)
    return Graph(text, maker.weights, inputs, (weighted, others), states)


def _input_shape(rng: random.Random, batch: int) -> list[int]:
    kind = rng.random()
    if kind < 0.2:
        return [batch, rng.choice(FEATURES)]
    if kind < 0.7:
        return [batch, rng.choice((2, 3, 4, 8)), rng.choice(FEATURES)]
    return [batch, rng.choice((3, 4, 8)), rng.choice((4, 6, 8)), rng.choice((4, 5, 8))]


def _step(maker: Maker, number: int) -> None:
    maker.path = f"block.{number}.{maker.rng.choice(('up', 'down', 'norm', 'act'))}"
    before = len(maker.weights)
    for _ in range(20):
        name = maker.rng.choices(list(_STEPS), [often for often, _ in _STEPS.values()])[0]
        with make_location(f"{name}_{number}", maker.path, [], ir.Context.current):
            found = _STEPS[name][1](maker)
        if found is not None:
            maker.values.append(found)
            maker.inside[0 if len(maker.weights) > before else 1].append(maker.path)
            return
