"""Compiles a program for a mesh and compares its ranks, simulated, with one device in numpy."""

from __future__ import annotations

import numpy as np

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.dialect.context import parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import LowerkitError, ParityError, UnsupportedError, UsageError
from lowerkit.passes.rewriting import main_block, tensor_type
from lowerkit.passes.shard.plan import MeshPlan, ShardingPlan, StageEntry, StagePlan
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import Signature, TensorSpec
from sharding_graphs import Graph, Mesh, input_names
from sharding_judge import Outcome, compared, split, store_of
from sharding_maker import shared_context


def judge_compiled(graph: Graph, mesh: Mesh) -> Outcome:
    """Returns the outcome of a program that is compiled from stage ``raised`` on, but for entries without a use."""
    module, store = parse_module(graph.text, shared_context()), store_of(graph)
    final = dict(graph.states)
    wanted = interpret(module, graph.inputs, store.get, states=final)
    plans = split(parse_module(graph.text, shared_context()), store_of(graph), mesh, input_names(graph))
    used = [tuple(entry for entry in plan.entries if entry in plan.report.used) for plan in plans]
    axes = [ShardingPlan(plan.axis, plan.ranks, own) for plan, own in zip(plans, used, strict=True) if own]
    if not axes and not mesh.stages:
        return Outcome("passed")
    returned = [tensor_type(value) for value in list(main_block(module).operations)[-1].operation.operands]
    names = input_names(graph)
    inputs = [
        TensorSpec(name, {"float32": "f32", "int64": "i64"}[str(array.dtype)], list(array.shape))
        for name, array in zip(names, graph.inputs, strict=True)
    ]
    outputs = [
        TensorSpec(f"out{number}", str(kind.element_type), list(kind.shape))
        for number, kind in enumerate(returned)
        if kind is not None
    ]
    states = [TensorSpec(name, "f32", list(array.shape)) for name, array in graph.states.items()]
    for name, array in graph.states.items():
        store.add(name, array)
    program = Program(shared_context(), module, store, Signature(inputs, outputs, states), "random", "raised")
    sizes, stages = [(plan.axis, plan.ranks) for plan in axes], None
    if mesh.stages:
        count = max(mesh.stages.values()) + 1
        sizes.append(("pp", count))
        stages = StagePlan("pp", count, tuple(StageEntry(*entry) for entry in mesh.stages.items()))
    sharding = MeshPlan(tuple(sizes), tuple(axes), stages)
    try:
        compiled = compile_program(program, CompileOptions(golden=False, workers=1, sharding=sharding))
        found = compiled.runner.run(*graph.inputs)
    except UnsupportedError as error:
        return Outcome("refused" if error.code == "LK4007" else "crashed", f"{error.code}: {error.message}")
    except UsageError as error:
        # What canonicalization folds is named in vain.
        return Outcome("refused" if error.code == "LK1011" else "crashed", f"{error.code}: {error.message}")
    except ParityError as error:
        return Outcome("wrong", str(error.message))
    except (LowerkitError, AssertionError, ValueError, TypeError, IndexError, KeyError) as error:
        return Outcome("crashed", f"{type(error).__name__}: {error}")
    kept = [(compiled.runner.state[name], final[name]) for name in graph.states if name in compiled.runner.state]
    pairs = [*zip(map(np.asarray, found), wanted, strict=True), *kept]
    return compared([[ours for ours, _ in pairs]], [other for _, other in pairs])
