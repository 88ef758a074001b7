"""Loops that collect a value of each turn, and scans, as loops that carry the collected values.

    Loop    whose number of turns is known by shapes alone, and whose condition stays true
    Scan    over an axis that is symbolic, or too long to be written out

Each collected value becomes a tensor of its whole size, made of zeros ahead of the loop and carried through it. A turn
puts its item where the row's number is that of the turn. A number of turns that data decides would make the shape of an
output data: such loops are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from lowerkit.capture.onnx.control_flow.static_control_flow import stays_true
from lowerkit.capture.onnx.inline import unique_prefix
from lowerkit.capture.onnx.skeleton import OnnxGraph

_ALONG = ("Gather", "Squeeze", "Cast", "Identity", "Reshape")
_OF_SHAPES = {
    *_ALONG,
    "Shape",
    "Size",
    "Unsqueeze",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Slice",
    "Concat",
    "Max",
    "Min",
    "Constant",
}
"""What may lie between the shape of a tensor and a number of turns."""


def carry_collected(ready: OnnxGraph) -> bool:
    """Rewrites each Scan, and each Loop that collects values, where shapes alone say how many.

    Returns whether there was one.
    """
    graph = ready.graph
    found = False
    nodes: list[NodeProto] = []
    for node in graph.node:
        written = None
        if node.domain in ("", "ai.onnx") and node.op_type in ("Loop", "Scan"):
            writer = _Writer(graph, node)
            written = writer.from_loop() if node.op_type == "Loop" else writer.from_scan()
        nodes += [node] if written is None else written
        found = found or written is not None
    if found:
        del graph.node[:]
        graph.node.extend(nodes)
    return found


@dataclass(frozen=True)
class _Collected:
    """One collected value: the name of an item in the body, of the result, its axis there, which way it is filled."""

    item: str
    result: str
    axis: int = 0
    backward: bool = False


class _Writer:
    def __init__(self, graph: GraphProto, node: NodeProto) -> None:
        self.graph = graph
        self.node = node
        self.prefix = f"{unique_prefix(node)}.carried"
        self.attributes = {attribute.name: attribute for attribute in node.attribute}
        self.types = {value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info, *graph.output]}
        self.ahead: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.body = GraphProto()
        self.body.CopyFrom(self.attributes["body"].g)

    def from_loop(self) -> list[NodeProto] | None:
        """Rewrites a Loop; None where it collects nothing, or data decides its number of turns."""
        count, condition, *carried = [*self.node.input, *[""] * (2 - len(self.node.input))]
        scans = len(self.body.output) - 1 - len(carried)
        values = {tensor.name: tensor for tensor in self.graph.initializer}
        always = not condition or (condition in values and bool(numpy_helper.to_array(values[condition]).all()))
        if scans == 0 or not always or not stays_true(self.body) or not self._is_of_shapes(count):
            return None
        items = [value.name for value in self.body.output[1 + len(carried) :]]
        results = list(self.node.output)[len(carried) :]
        return self._write(count, carried, [_Collected(*pair) for pair in zip(items, results, strict=False)])

    def from_scan(self) -> list[NodeProto] | None:
        """Rewrites a Scan; None where the extents of its items are not known."""
        scanned = self.attributes["num_scan_inputs"].i
        if len(self.node.input) != len(self.body.input):
            return None
        split = len(self.node.input) - scanned
        carried, inputs = list(self.node.input[:split]), list(self.node.input[split:])
        outputs = len(self.body.output) - split
        ranks = [self._rank(name) for name in (*inputs, *list(self.node.output)[split:])]
        if any(rank is None for rank in ranks):
            return None
        axes, reverse = self._integers("scan_input_axes", scanned), self._integers("scan_input_directions", scanned)
        out_axes = self._integers("scan_output_axes", outputs)
        out_reverse = self._integers("scan_output_directions", outputs)
        axes = [axis % rank for axis, rank in zip(axes, ranks, strict=False) if rank]
        out_axes = [axis % rank for axis, rank in zip(out_axes, ranks[scanned:], strict=True) if rank]
        count = self._extent_of(inputs[0], axes[0])
        turn = f"{self.prefix}.turn"
        formal = list(self.body.input)
        reads: list[NodeProto] = []
        for value, name, axis, backward in zip(formal[split:], inputs, axes, reverse, strict=True):
            place = self._backward(reads, turn, count) if backward else turn
            reads.append(helper.make_node("Gather", [name, place], [value.name], axis=axis))
        on = f"{self.prefix}.on"
        del self.body.input[:]
        self.body.input.extend(
            [
                helper.make_tensor_value_info(turn, TensorProto.INT64, []),
                helper.make_tensor_value_info(on, TensorProto.BOOL, []),
                *formal[:split],
            ]
        )
        behind = list(self.body.node)
        del self.body.node[:]
        self.body.node.extend([*reads, *behind])
        self.body.node.append(helper.make_node("Identity", [on], [f"{on}.still"]))
        results = list(self.body.output)
        del self.body.output[:]
        self.body.output.extend([helper.make_tensor_value_info(f"{on}.still", TensorProto.BOOL, []), *results])
        collected = [
            _Collected(value.name, name, axis, bool(backward))
            for value, name, axis, backward in zip(
                results[split:], list(self.node.output)[split:], out_axes, out_reverse, strict=True
            )
        ]
        return self._write(count, carried, collected)

    def _write(self, count: str, carried: Sequence[str], collected: Sequence[_Collected]) -> list[NodeProto] | None:
        turn = self.body.input[0].name
        buffers: list[str] = []
        results: list[str] = []
        behind: list[NodeProto] = []
        del self.body.output[1 + len(carried) :]
        for number, entry in enumerate(collected):
            if not entry.result:
                continue
            label = f"{self.prefix}.buffer{number}"
            shape = self._extents(entry, count, label)
            if shape is None:
                return None
            element = self.types[entry.result].elem_type
            zero = helper.make_tensor("", element, [1], [0])
            self.ahead.append(helper.make_node("ConstantOfShape", [shape], [label], value=zero))
            buffers.append(label)
            taken, given = f"{label}.taken", f"{label}.given"
            kind = self._kind(entry, count)
            for values, name in ((self.body.input, taken), (self.body.output, given)):
                values.append(ValueInfoProto(name=name, type=kind))
            inside: list[NodeProto] = []
            place = self._backward(inside, turn, count) if entry.backward else turn
            here = _add(inside, "Equal", [self._rows(len(kind.tensor_type.shape.dim), label), place], f"{label}.here")
            row = _add(inside, "Unsqueeze", [entry.item, self._constant(f"{label}.axes", [0])], f"{label}.row")
            _add(inside, "Where", [here, row, taken], given)
            self.body.node.extend(inside)
            results.append(f"{label}.last" if entry.axis else entry.result)
            if entry.axis:
                self.graph.value_info.append(ValueInfoProto(name=results[-1], type=kind))
                order = list(range(1, self._rank(entry.result) or 0))
                order.insert(entry.axis, 0)
                behind.append(helper.make_node("Transpose", [results[-1]], [entry.result], perm=order))
        outputs = [*list(self.node.output)[: len(carried)], *results]
        name = self.node.name or self.prefix
        loop = helper.make_node("Loop", [count, "", *carried, *buffers], outputs, name, body=self.body)
        self.graph.initializer.extend(self.constants)
        return [*self.ahead, loop, *behind]

    def _kind(self, entry: _Collected, count: str) -> TypeProto:
        """The type of a collected value, its own axis first; names the dim of an output of the graph."""
        kind = TypeProto()
        kind.tensor_type.CopyFrom(self.types[entry.result])
        dims = list(kind.tensor_type.shape.dim)
        own = dims.pop(entry.axis)
        symbol = self._symbol_of(count)
        if not own.HasField("dim_value") and symbol:
            own.dim_param = symbol
            for value in self.graph.output:
                if value.name == entry.result:
                    value.type.tensor_type.shape.dim[entry.axis].dim_param = symbol
        del kind.tensor_type.shape.dim[:]
        kind.tensor_type.shape.dim.extend([own, *dims])
        return kind

    def _symbol_of(self, count: str) -> str:
        """The symbolic dim that a number of turns is; empty where it is something else."""
        made = {output: node for node in [*self.graph.node, *self.ahead] for output in node.output}
        values = {tensor.name: tensor for tensor in [*self.graph.initializer, *self.constants]}
        node, axis = made.get(count), None
        while node is not None and node.op_type in _ALONG:
            if node.op_type == "Gather" and node.input[1] in values:
                axis = int(numpy_helper.to_array(values[node.input[1]]).reshape(-1)[0])
            node = made.get(node.input[0])
        if node is None or node.op_type != "Shape" or node.attribute or axis is None or node.input[0] not in self.types:
            return ""
        return self.types[node.input[0]].shape.dim[axis].dim_param

    def _rows(self, rank: int, label: str) -> str:
        """Adds the numbers of the rows of a collected value, of its rank."""
        # A sum of ones: that of a Range would be data.
        one, first = self._constant(f"{label}.one", 1), self._constant(f"{label}.first", 0)
        ones = helper.make_tensor("", TensorProto.INT64, [1], [1])
        self.ahead.append(helper.make_node("ConstantOfShape", [f"{label}.count"], [f"{label}.ones"], value=ones))
        _add(self.ahead, "CumSum", [f"{label}.ones", first], f"{label}.sums")
        numbers = _add(self.ahead, "Sub", [f"{label}.sums", one], f"{label}.numbers")
        axes = self._constant(f"{label}.others", list(range(1, rank)))
        return _add(self.ahead, "Unsqueeze", [numbers, axes], f"{label}.rows")

    def _extents(self, entry: _Collected, count: str, label: str) -> str | None:
        """Adds the shape of a collected value, its own axis first; None where an extent is not known."""
        declared = self.types.get(entry.result)
        if declared is None or not declared.HasField("shape"):
            return None
        parts = [self._listed(count, f"{label}.count")]
        for axis, dim in enumerate(declared.shape.dim):
            if axis == entry.axis:
                continue
            source = self._declared(dim.dim_param)
            if dim.HasField("dim_value"):
                parts.append(self._constant(f"{label}.extent{axis}", [dim.dim_value]))
            elif source is not None:
                parts.append(self._listed(self._extent_of(*source), f"{label}.extent{axis}"))
            else:
                return None
        return _add(self.ahead, "Concat", parts, f"{label}.shape", axis=0)

    def _listed(self, extent: str, label: str) -> str:
        """Adds an extent as a list of one; a reshape would hide that it is one."""
        if self._rank(extent) == 1:
            return _add(self.ahead, "Identity", [extent], label)
        return _add(self.ahead, "Unsqueeze", [extent, self._constant(f"{label}.axes", [0])], label)

    def _declared(self, name: str) -> tuple[str, int] | None:
        """Returns the input and the axis that have a symbolic dim."""
        for value in self.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if name and dim.dim_param == name:
                    return value.name, axis
        return None

    def _extent_of(self, name: str, axis: int) -> str:
        """Adds an extent of a tensor, an integer of rank 0."""
        dim = self.types[name].shape.dim[axis]
        label = f"{self.prefix}.{len(self.ahead)}.{len(self.constants)}"
        if dim.HasField("dim_value"):
            return self._constant(label, dim.dim_value)
        shape = _add(self.ahead, "Shape", [name], f"{label}.shape")
        return _add(self.ahead, "Gather", [shape, self._constant(f"{label}.axis", axis)], label, axis=0)

    def _backward(self, nodes: list[NodeProto], turn: str, count: str) -> str:
        """Adds ``count - 1 - turn``."""
        label = f"{self.prefix}.back{len(self.body.node)}.{len(nodes)}.{len(self.constants)}"
        last = _add(nodes, "Sub", [count, self._constant(f"{label}.one", 1)], f"{label}.last")
        return _add(nodes, "Sub", [last, turn], label)

    def _rank(self, name: str) -> int | None:
        declared = self.types.get(name)
        return len(declared.shape.dim) if declared is not None and declared.HasField("shape") else None

    def _integers(self, name: str, count: int) -> list[int]:
        attribute = self.attributes.get(name)
        return list(attribute.ints) if attribute is not None else [0] * count

    def _constant(self, name: str, value: int | list[int]) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name

    def _is_of_shapes(self, name: str) -> bool:
        """Whether a value depends on shapes and constants only."""
        made = {output: node for node in self.graph.node for output in node.output}
        literals = {tensor.name for tensor in self.graph.initializer}
        waiting, seen = [name], set[str]()
        while waiting:
            value = waiting.pop()
            if value in seen or value in literals:
                continue
            seen.add(value)
            node = made.get(value)
            if node is None or node.op_type not in _OF_SHAPES:
                return False
            waiting += [] if node.op_type in ("Shape", "Size") else [read for read in node.input if read]
        return bool(name)


def _add(nodes: list[NodeProto], op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
    nodes.append(helper.make_node(op_type, list(inputs), [output], output, **attributes))
    return output
