"""Control flow whose course is known at compile time: a branch that is always taken, a loop of a known length.

    If      with a constant condition becomes its branch
    Loop    with a constant trip count, and a condition that stays true, becomes its steps
    Scan    over an axis of known length becomes its steps

What is left is control flow that depends on data, and is refused later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from lowerkit.capture.onnx.inline import inline_nodes, unique_prefix

if TYPE_CHECKING:
    from lowerkit.capture.onnx.skeleton import OnnxGraph

MOST_STEPS = 512
"""Steps of a loop that are written out at most: each is a copy of the body."""


def inline_control_flow(ready: OnnxGraph) -> bool:
    """Replaces each If, Loop and Scan whose course is known; returns whether there was one."""
    graph = ready.graph
    if not any(node.op_type in _INLINERS for node in graph.node):
        return False
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    types = {value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info, *graph.output]}
    nodes: list[NodeProto] = []
    changed = False
    for node in list(graph.node):
        written = None
        if node.domain in ("", "ai.onnx") and node.op_type in _INLINERS:
            unroller = _Unroller(graph, node, unique_prefix(node))
            written = _INLINERS[node.op_type](unroller, values, types)
        if written is None:
            nodes.append(node)
        else:
            changed = True
            nodes.extend(written)
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


class _Unroller:
    """Writes copies of the bodies of one node."""

    def __init__(self, graph: GraphProto, node: NodeProto, prefix: str) -> None:
        self.graph = graph
        self.node = node
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.attributes = {attribute.name: attribute for attribute in node.attribute}

    def step(self, body: GraphProto, inputs: Sequence[str], label: str) -> list[str]:
        """Writes one copy of the body; returns the names of its outputs."""
        prefix = f"{self.prefix}/{label}/"
        names = dict(zip([value.name for value in body.input], inputs, strict=True))
        for tensor in body.initializer:
            copy = self.graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name] = prefix + tensor.name
        self.nodes.extend(inline_nodes(body.node, names, prefix))
        defined = {name for node in body.node for name in node.output}
        return [
            prefix + value.name if value.name in defined else names.get(value.name, value.name) for value in body.output
        ]

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Writes a node with one output."""
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], self.prefix, **attributes))
        return output

    def constant(self, label: str, value: Any, dtype: Any = np.int64) -> str:
        """Adds a constant."""
        name = f"{self.prefix}/{label}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, name: str, count: int) -> list[int]:
        """Returns a list attribute of the node, zeros where it is absent."""
        attribute = self.attributes.get(name)
        return list(attribute.ints) if attribute is not None else [0] * count

    def give(self, values: Sequence[str], outputs: Sequence[str]) -> None:
        """Lets values be the outputs of the node that is replaced."""
        for value, output in zip(values, outputs, strict=True):
            if output:
                self.add("Identity", [value], output)

    def stack(self, items: Sequence[str], output: str, axis: int) -> None:
        """Writes the steps' values of one scan output, stacked along a new axis."""
        if not output:
            return
        axes = self.constant(f"{output}.axes", [axis])
        rows = [
            self.add("Unsqueeze", [item, axes], f"{self.prefix}/{output}.{step}") for step, item in enumerate(items)
        ]
        self.add("Concat", rows, output, axis=axis)


_Values = Mapping[str, np.ndarray[Any, Any]]


def _inline_if(unroller: _Unroller, values: _Values, types: Mapping[str, Any]) -> list[NodeProto] | None:
    condition = values.get(unroller.node.input[0])
    if condition is None or condition.size != 1:
        return None
    label = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    unroller.give(unroller.step(unroller.attributes[label].g, [], label), unroller.node.output)
    return unroller.nodes


def _unroll_loop(unroller: _Unroller, values: _Values, types: Mapping[str, Any]) -> list[NodeProto] | None:
    node = unroller.node
    body = unroller.attributes["body"].g
    count, condition = (node.input[index] if index < len(node.input) else "" for index in (0, 1))
    carried = list(node.input[2:])
    trips = values.get(count)
    if trips is None or (condition and (condition not in values or not values[condition].all())):
        return None
    steps = int(trips.reshape(-1)[0])
    scans = len(body.output) - 1 - len(carried)
    if steps > MOST_STEPS or not stays_true(body) or (steps <= 0 and scans):
        return None
    rows: list[list[str]] = [[] for _ in range(scans)]
    always = unroller.constant("true", True, np.bool_)
    for step in range(steps):
        found = unroller.step(body, [unroller.constant(f"step{step}", step), always, *carried], str(step))
        carried = found[1 : 1 + len(carried)]
        for row, item in zip(rows, found[1 + len(carried) :], strict=True):
            row.append(item)
    unroller.give(carried, node.output[: len(carried)])
    for row, output in zip(rows, node.output[len(carried) :], strict=False):
        unroller.stack(row, output, 0)
    return unroller.nodes


def stays_true(body: GraphProto) -> bool:
    """Whether the condition that the body gives is the one it takes, or the constant true."""
    name = body.output[0].name
    made = {output: node for node in body.node for output in node.output}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if len(body.input) > 1 and name == body.input[1].name:
        return True
    constants = {tensor.name: tensor for tensor in body.initializer}
    if name in made and made[name].op_type == "Constant" and made[name].attribute[0].name == "value":
        constants[name] = made[name].attribute[0].t
    tensor = constants.get(name)
    return tensor is not None and tensor.data_type == TensorProto.BOOL and bool(numpy_helper.to_array(tensor).all())


def _unroll_scan(unroller: _Unroller, values: _Values, types: Mapping[str, Any]) -> list[NodeProto] | None:
    node = unroller.node
    body = unroller.attributes["body"].g
    inputs = unroller.attributes["num_scan_inputs"].i
    if len(node.input) != len(body.input):
        return None  # opset 8 has a batch axis and lengths
    carried, scanned = list(node.input[: len(node.input) - inputs]), list(node.input[len(node.input) - inputs :])
    outputs = len(body.output) - len(carried)
    axes, reverse = (unroller.integers(f"scan_input_{name}", inputs) for name in ("axes", "directions"))
    out_axes, out_reverse = (unroller.integers(f"scan_output_{name}", outputs) for name in ("axes", "directions"))
    steps = _length(types.get(scanned[0]), axes[0])
    if steps is None or not 0 < steps <= MOST_STEPS:
        return None
    rows: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(steps):
        items: list[str] = []
        for index, (name, axis) in enumerate(zip(scanned, axes, strict=True)):
            at = unroller.constant(f"at{step}.{index}", steps - 1 - step if reverse[index] else step)
            items.append(unroller.add("Gather", [name, at], f"{unroller.prefix}/item{step}.{index}", axis=axis))
        found = unroller.step(body, [*carried, *items], str(step))
        carried = found[: len(carried)]
        for row, item in zip(rows, found[len(carried) :], strict=True):
            row.append(item)
    unroller.give(carried, node.output[: len(carried)])
    for index, (row, output) in enumerate(zip(rows, node.output[len(carried) :], strict=False)):
        unroller.stack(row[::-1] if out_reverse[index] else row, output, out_axes[index])
    return unroller.nodes


def _length(tensor_type: Any, axis: int) -> int | None:
    if tensor_type is None or not tensor_type.HasField("shape"):
        return None
    dim = tensor_type.shape.dim[axis]
    return dim.dim_value if dim.HasField("dim_value") else None


_INLINERS: dict[str, Callable[[_Unroller, _Values, Mapping[str, Any]], list[NodeProto] | None]] = {
    "If": _inline_if,
    "Loop": _unroll_loop,
    "Scan": _unroll_scan,
}
