"""The captured graph as the reference, and whether it is eager's: eager against the export, that against the import.

A graph that capture rewrote (decompositions of its own, constants) is compared with the export node by node in
float64; the export with eager module by module, through forward hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.export.graph_signature import OutputKind

from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.bisect.cause import cause_of
from lowerkit.parity.bisect.divergence import same
from lowerkit.parity.bisect.finding import Finding
from lowerkit.parity.gates import GATES, judge_model
from lowerkit.parity.metrics import compare
from lowerkit.program.locations import Origin, frames_of_trace

if TYPE_CHECKING:
    from torch import fx

    from lowerkit.program.functional_program import FunctionalProgram
    from lowerkit.program.program import Program


@dataclass
class GraphValues:
    """Values of a captured graph: of every node, and of the model's outputs (empty where it could not be run)."""

    nodes: Mapping[str, Sequence[Array]]
    outputs: list[Array]
    note: str


def graph_values(program: Program, inputs: Sequence[Array], *, float64: bool = True) -> GraphValues:
    """Runs the graph that was imported; an ONNX graph in float64 only, by ONNX's own evaluator."""
    try:
        if program.functional is not None:
            return _run(program.functional, inputs, len(program.signature.outputs), float64=float64)
        if program.onnx_model is None or not float64:
            return GraphValues({}, [], "")
        from lowerkit.parity.references.onnx_nodes import onnx_float64_values

        values = onnx_float64_values(program, inputs)
        outputs = [values[spec.name] for spec in program.signature.outputs if spec.name in values]
        complete = len(outputs) == len(program.signature.outputs)
        return GraphValues({name: [value] for name, value in values.items()}, outputs if complete else [], "")
    except Exception as error:  # PyTorch and ONNX's evaluator raise what they like
        return GraphValues({}, [], f"the graph could not be run: {type(error).__name__}: {error}")


def _run(program: FunctionalProgram, inputs: Sequence[Array], count: int, *, float64: bool) -> GraphValues:
    from lowerkit.parity.references.torch_nodes import node_values

    # The values of a large model in float64 fit into memory where its activations fit twice.
    names = [node.name for node in program.graph.nodes if node.op != "output"]
    values = node_values(program, inputs, names, float64=float64)
    outputs: list[Array] = []
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if spec.kind == OutputKind.USER_OUTPUT and name in values:
            outputs.append(values[str(name)][0])
    computed = {node.name for node in program.graph.nodes if node.op == "call_function"}
    nodes = {name: value for name, value in values.items() if name in computed}
    return GraphValues(nodes, outputs if len(outputs) == count else [], "")


def exported_values(program: Program, inputs: Sequence[Array]) -> GraphValues:
    """Runs the graph as it was exported, before capture rewrote it, in float64; empty where it cannot be run so."""
    from lowerkit.program.functional_program import FunctionalProgram

    if program.exported is None:
        return GraphValues({}, [], "")
    try:
        graph = FunctionalProgram.of(program.exported)
        return _run(graph, inputs, len(program.signature.outputs), float64=True)
    except Exception as error:  # a graph that changes its inputs cannot be run node by node
        return GraphValues({}, [], f"the export could not be run in float64: {type(error).__name__}")


def decomposition_finding(
    program: Program, exported: GraphValues, imported: GraphValues, limit: float
) -> Finding | None:
    """Compares the export with the graph that capture made of it, in float64; None where they agree.

    ``limit`` are the decibels from which on they do: capture computes what depends on no input in the model's own
    element types.
    """
    if program.exported is None or not exported.outputs or not imported.outputs:
        return None
    pairs = list(zip(imported.outputs, exported.outputs, strict=False))
    if all(same(*pair, limit) for pair in pairs):
        return None
    by_size: dict[int, list[Array]] = {}
    for values in imported.nodes.values():
        for value in values:
            by_size.setdefault(value.size, []).append(value)
    agreed = {
        name: all(any(same(value, other, limit) for other in by_size.get(value.size, ())) for value in values)
        for name, values in exported.nodes.items()
    }
    node = first_unsound(program.exported.graph, agreed)
    if node is None:
        return None
    value = exported.nodes[node.name][0]
    known = imported.nodes.get(node.name, ())
    actual = known[0] if known and known[0].shape == value.shape else None
    return _finding("decomposition", node, value, actual)


def eager_finding(
    program: Program, inputs: Sequence[Array], eager: Sequence[Array], own: GraphValues
) -> Finding | None:
    """Compares eager with the export in the model's element types; None where gate A holds between them."""
    specs = program.signature.outputs
    verdicts = [
        judge_model(spec.dtype, actual, expected)
        for spec, actual, expected in zip(specs, own.outputs, eager, strict=False)
    ]
    if all(verdict.passed for verdict in verdicts) or program.functional is None:
        return None
    hooked = _hooked(program, inputs)
    path = next(
        (path for path, values in hooked if values and not any(_near(value, own.nodes) for value in values)), None
    )
    nodes = [node for node in program.functional.graph.nodes if node.name in own.nodes]
    inside = [node for node in nodes if path is not None and origin_of_node(node).module == path] or nodes[-1:]
    if not inside:
        return None
    return _finding("torch.export", inside[-1], own.nodes[inside[-1].name][0], None)


def _hooked(program: Program, inputs: Sequence[Array]) -> list[tuple[str, list[Array]]]:
    """Returns (module path, its outputs) of every submodule, in the order in which they finish."""
    import torch
    from torch.utils._pytree import tree_leaves

    from lowerkit.program.dtypes import to_numpy

    found: list[tuple[str, list[Array]]] = []
    module = program.eager_module
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule) or program.eager is None:
        return found

    def hook(path: str) -> Any:
        def keep(_module: Any, _arguments: Any, output: Any) -> None:
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
            found.append((path, [np.array(to_numpy(leaf)) for leaf in leaves]))

        return keep

    handles = [inner.register_forward_hook(hook(path)) for path, inner in module.named_modules() if path]
    try:
        program.eager(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _near(value: Array, nodes: Mapping[str, Sequence[Array]]) -> bool:
    limit = GATES["bf16"].model_sqnr_db
    return any(
        other.shape == value.shape and compare(value, other).sqnr_db >= limit
        for values in nodes.values()
        for other in values
    )


def first_unsound(graph: fx.Graph, agreed: Mapping[str, bool]) -> fx.Node | None:
    """Returns the first node that does not agree and of which something that does not agree is computed, or an output.

    A node that is not in ``agreed`` agrees where all that reads it does.
    """
    sound: dict[fx.Node, bool] = {}
    for node in reversed(list(graph.nodes)):
        if node.op == "output":
            continue
        readers = [user for user in node.users if user.op != "output"]
        ends = any(user.op == "output" for user in node.users)
        by_readers = bool(readers) and not ends and all(sound[user] for user in readers)
        sound[node] = agreed.get(node.name, by_readers) or by_readers
    return next((node for node in graph.nodes if not sound.get(node, True) and node.name in agreed), None)


def origin_of_node(node: fx.Node) -> Origin:
    """Returns the name of a node, the path of its module, and the user's call stack."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((value[0] for value in reversed(list(stack.values()))), "")
    return Origin(
        node.name, path.removeprefix("L['self']").lstrip("."), tuple(frames_of_trace(node.meta.get("stack_trace")))
    )


def _finding(culprit: str, node: fx.Node, reference: Array, actual: Array | None) -> Finding:
    origin = origin_of_node(node)
    return Finding(
        stage="exported",
        culprit=culprit,
        op=str(node.target),
        node=f"{origin.node}@{origin.module}",
        location=origin.source_line or "",
        shape=reference.shape,
        distance=None if actual is None else compare(actual, reference),
        cause="no value of the imported graph is this node's" if actual is None else cause_of(actual, reference),
    )
