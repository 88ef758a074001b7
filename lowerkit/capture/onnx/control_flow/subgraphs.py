"""The bodies of ``If`` and ``Loop`` as graphs of their own, with everything that they read from outside as inputs.

Vocabulary
    captured  a value of the outer graph that a body reads by its name. A weight or a literal becomes the body's own;
              any other is an input of the body, behind the inputs that it has by itself.

A loop gets two more carried values, the number of the turn and whether to go on, and a body that is its condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from lowerkit.capture.onnx.inline import inline_nodes, names_read, node_reads
from lowerkit.capture.onnx.prepare import ready_graph
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.capture.onnx.tensors import DTYPE_NAMES
from lowerkit.errors import UnsupportedError

EVER = np.iinfo(np.int64).max
"""The trip count of a loop that states none."""


@dataclass(frozen=True)
class Bodies:
    """Two bodies of one node (branches; condition and body of a loop) that take the same inputs.

    Attributes:
        captured: names of the outer values that they take, behind a loop's carried ones.
        graphs: the two.
    """

    captured: list[str]
    graphs: tuple[OnnxGraph, OnnxGraph]


def branches(outer: OnnxGraph, types: Mapping[str, TypeProto], node: NodeProto, prefix: str) -> Bodies:
    """Returns the branches of an If: then, else.

    Raises:
        UnsupportedError: LK4001, a captured value is of a type that is not supported.
    """
    graphs = {attribute.name: attribute.g for attribute in node.attribute}
    pair = graphs["then_branch"], graphs["else_branch"]
    captured = _captured(outer, types, node, pair)
    inputs = {name: types[name] for name in captured}
    made = [
        _Body(outer, f"{prefix}.{label}").take(graph, {}) for graph, label in zip(pair, ("then", "else"), strict=True)
    ]
    one, two = (body.finish(inputs, body.results) for body in made)
    return Bodies(captured, (one, two))


def loop_bodies(
    outer: OnnxGraph, types: Mapping[str, TypeProto], node: NodeProto, carried: Sequence[TypeProto], prefix: str
) -> Bodies:
    """Returns the condition and the body of a Loop.

    Both take the number of the turn, whether to go on, the carried values, the trip count, then what is captured.

    Raises:
        UnsupportedError: LK4001, the loop collects a value of each turn, or a type is not supported.
    """
    graph = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    if len(graph.output) != 1 + len(carried):
        raise UnsupportedError(
            "LK4001",
            f"Loop (node {node.name or node.output[0]!r}) collects a value of each turn, and data decides how many",
            hint="write the values into a tensor of fixed size that the loop carries (ScatterND)",
        )
    captured = _captured(outer, types, node, (graph,))
    number, going = _scalar(TensorProto.INT64), _scalar(TensorProto.BOOL)
    names = [f"{prefix}:{name}" for name in ("turn", "going", *map("carried{}".format, range(len(carried))), "turns")]
    turn, going_on, turns = names[0], names[1], names[-1]
    inputs = dict(zip(names, [number, going, *carried, number], strict=True)) | {name: types[name] for name in captured}
    condition = _Body(outer, f"{prefix}.condition")
    early = condition.add("Less", [turn, turns], "early")
    decision = condition.add("And", [early, going_on], "decision")
    body = _Body(outer, f"{prefix}.body")
    given = dict(zip((value.name for value in graph.input), names, strict=False))
    for value, name in zip(graph.input[:2], names, strict=False):
        if len(value.type.tensor_type.shape.dim) == 1:
            given[value.name] = body.reshaped(name, [1])
    body.take(graph, given)
    next_turn = body.add("Add", [turn, body.constant("one", np.int64(1))], "next_turn")
    goes_on = body.reshaped(body.results[0], [])
    return Bodies(
        captured,
        (condition.finish(inputs, [decision]), body.finish(inputs, [next_turn, goes_on, *body.results[1:]])),
    )


def _captured(
    outer: OnnxGraph, types: Mapping[str, TypeProto], node: NodeProto, graphs: Sequence[GraphProto]
) -> list[str]:
    own = {tensor.name for tensor in outer.graph.initializer} | set(outer.weights)
    names = dict.fromkeys(name for graph in graphs for name in names_read(graph) if name not in own)
    problems: list[str] = []
    for name in [*names, *(name for name in node.output if name)]:
        kind = types.get(name)
        if kind is None or kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
            problems.append(f"{name!r} is of unknown shape or no tensor")
        elif kind.tensor_type.elem_type not in DTYPE_NAMES:
            problems.append(f"{name!r} has element type {TensorProto.DataType.Name(kind.tensor_type.elem_type)}")
    if problems:
        raise UnsupportedError(
            "LK4001",
            f"{node.op_type} (node {node.name or node.output[0]!r}) reads or gives what control flow cannot pass",
            details=problems,
        )
    # In the order of types: control flow takes a bounded number of runs of equal types.
    return sorted(names, key=lambda name: str(types[name]))


class _Body:
    """A graph that is put together.

    Names that it takes over from a body of the model begin with ``name/``, its own with ``name:``: they never meet.
    """

    def __init__(self, outer: OnnxGraph, name: str) -> None:
        self.outer = outer
        self.name = name
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.results: list[str] = []

    def take(self, graph: GraphProto, given: Mapping[str, str]) -> _Body:
        """Adds the nodes of ``graph``, whose inputs are called as ``given`` says; sets :attr:`results`."""
        names = dict(given)
        for tensor in graph.initializer:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name] = f"{self.name}/{tensor.name}"
            self.initializers.append(copy)
        self.nodes += inline_nodes(graph.node, names, f"{self.name}/")
        names |= {name: f"{self.name}/{name}" for node in graph.node for name in node.output if name}
        self.results = [names.get(value.name, value.name) for value in graph.output]
        return self

    def add(self, op_type: str, inputs: Sequence[str], label: str) -> str:
        """Adds a node with one output; returns its name."""
        output = f"{self.name}:{label}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], output))
        return output

    def constant(self, label: str, value: np.generic | np.ndarray) -> str:
        """Adds a constant."""
        name = f"{self.name}:{label}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Adds a reshape of one element."""
        label = f"{value}.as{len(shape)}"
        sizes = self.constant(f"{label}.shape", np.array(shape, np.int64))
        return self.add("Reshape", [value, sizes], label)

    def finish(self, inputs: Mapping[str, TypeProto], results: Sequence[str]) -> OnnxGraph:
        """Returns the graph, ready for import."""
        outputs: list[ValueInfoProto] = []
        for index, result in enumerate(results):  # a result may be an input or a constant, or be given twice
            name = self.add("Identity", [result], f"result{index}")
            outputs.append(ValueInfoProto(name=name))
        read = {name for node in self.nodes for name in node_reads(node)}
        literals = [tensor for tensor in self.outer.graph.initializer if tensor.name in read]
        declared = {value.name: value for value in self.outer.graph.input}
        weights = [name for name in self.outer.weights if name in read]
        graph = GraphProto(name="body", node=self.nodes, output=outputs, initializer=[*self.initializers, *literals])
        graph.input.extend(ValueInfoProto(name=name, type=kind) for name, kind in inputs.items())
        graph.input.extend(declared[name] for name in weights)
        model = ModelProto(ir_version=self.outer.model.ir_version, graph=graph)
        model.opset_import.extend(self.outer.model.opset_import)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        ready = ready_graph(model, None)
        ready.name = self.name
        ready.inputs = [name for name in ready.inputs if name not in weights]
        ready.weights.update({name: self.outer.weights[name] for name in weights})
        return ready


def _scalar(element: int) -> TypeProto:
    return helper.make_tensor_type_proto(element, [])
