"""The skeleton of an ONNX model: the model with its weights taken out, each a graph input with a type.

Vocabulary
    literal    a constant that stays in the graph: shapes, axes, scales. The conversions need their values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from lowerkit.capture.onnx.inline import node_reads
from lowerkit.capture.onnx.tensors import LazyTensor, TensorError, checked_shape, lazy_tensor, type_proto
from lowerkit.errors import CaptureError

LITERAL_INTEGERS = 1024
"""Integer and bool constants of at most so many elements are literals."""
LITERAL_PARAMETERS = 1 << 18
"""Parameters of at most so many elements are literals: a scale for each of as many channels."""

_INTEGERS = frozenset(
    {TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL}
)
_BEHIND_FIRST = slice(1, None)
_PARAMETER_OPERANDS: dict[str, slice] = {
    **dict.fromkeys(("Resize", "Upsample", "Clip", "Pad", "Range"), _BEHIND_FIRST),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _BEHIND_FIRST),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), slice(4, 6)),
}
"""Ops with operands that are parameters that must be constant, floats included, and which those are."""


@dataclass
class OnnxGraph:
    """A skeleton with its weights by name.

    Attributes:
        model: the skeleton; its graph inputs are the model's inputs and then the weights.
        inputs: names of the model's own inputs, in order.
        weights: the constants that are not in the skeleton.
        name: of the function that the graph becomes; the bodies of control flow are functions too.
        bodies: those that were imported, filled by the import.
        remarks: what the user should know of how the graph was read.
    """

    model: ModelProto
    inputs: list[str]
    weights: dict[str, LazyTensor] = field(default_factory=dict[str, LazyTensor])
    name: str = "main"
    bodies: list[OnnxGraph] = field(default_factory=list["OnnxGraph"])
    remarks: list[str] = field(default_factory=list[str])

    @property
    def graph(self) -> GraphProto:
        """The graph of the skeleton."""
        return self.model.graph

    def add_weight(self, name: str, tensor: LazyTensor) -> None:
        """Makes ``name`` a weight; nothing may define it any more."""
        self.weights[name] = tensor
        value = self.graph.input.add()
        value.name = name
        value.type.CopyFrom(type_proto(tensor.dtype, tensor.shape))


def make_skeleton(model: ModelProto, folder: Path | None) -> OnnxGraph:
    """Takes the weights out of ``model``, which is changed.

    Raises:
        CaptureError: LK2003, with every tensor that is damaged or leads out of ``folder``.
    """
    graph = model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    declared = {value.name: value for value in graph.input}
    inputs = [value.name for value in graph.input if value.name not in initializers]
    ready = OnnxGraph(model, inputs)
    parameters = _parameter_names(graph.node)
    problems: list[str] = []
    kept: list[TensorProto] = []
    moved: list[tuple[str, LazyTensor]] = []
    for tensor in graph.initializer:
        try:
            lazy = lazy_tensor(tensor, folder)
            if is_literal(tensor.data_type, checked_shape(tensor), tensor.name in parameters):
                kept.append(onnx.numpy_helper.from_array(lazy.read(), tensor.name))
            else:
                moved.append((tensor.name, lazy))
        except TensorError as error:
            problems.append(str(error))
    if graph.sparse_initializer:
        problems.extend(f"sparse tensor {sparse.values.name!r} is not supported" for sparse in graph.sparse_initializer)
    if problems:
        raise CaptureError(
            "LK2003", f"{len(problems)} tensors of the ONNX model cannot be read", details=problems[:32], hint=None
        )
    own = [declared[name] for name in inputs]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(own)
    graph.initializer.extend(kept)
    # Before version 4 an initializer has to be a graph input too.
    model.ir_version = max(model.ir_version, 4)
    for name, lazy in moved:
        ready.add_weight(name, lazy)
    return ready


def is_literal(data_type: int, shape: tuple[int, ...], is_parameter: bool) -> bool:
    """Whether a constant stays in the graph; ``is_parameter``: a conversion needs its value, floats included."""
    count = 1
    for extent in shape:
        count *= extent
    if is_parameter:
        return count <= LITERAL_PARAMETERS
    return count <= LITERAL_INTEGERS and (data_type in _INTEGERS or count == 1)


def _parameter_names(nodes: Iterable[NodeProto]) -> set[str]:
    none = slice(0)
    return {name for node in nodes for name in node.input[_PARAMETER_OPERANDS.get(node.op_type, none)]}


def extract_constant_nodes(ready: OnnxGraph, folder: Path | None) -> None:
    """Turns Constant nodes into initializers or weights; the other attributes (value_ints, ...) as well."""
    graph = ready.graph
    parameters = _parameter_names(graph.node)
    remaining: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
            remaining.append(node)
            continue
        tensor = _constant_tensor(node)
        if tensor is None:
            remaining.append(node)
            continue
        name = node.output[0]
        try:
            lazy = lazy_tensor(tensor, folder)
        except TensorError as error:
            raise CaptureError("LK2003", str(error), op=node.name or name) from error
        if is_literal(tensor.data_type, lazy.shape, name in parameters):
            graph.initializer.append(onnx.numpy_helper.from_array(lazy.read(), name))
        else:
            ready.add_weight(name, lazy)
    del graph.node[:]
    graph.node.extend(remaining)


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return attribute.t
        case "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, (), [attribute.i])
        case "value_ints":
            return onnx.helper.make_tensor("", TensorProto.INT64, (len(attribute.ints),), list(attribute.ints))
        case "value_float":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, (), [attribute.f])
        case "value_floats":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, (len(attribute.floats),), list(attribute.floats))
        case _:
            return None


def move_folded(ready: OnnxGraph) -> None:
    """Makes weights of the folded constants that no conversion needs the values of."""
    graph = ready.graph
    parameters = _parameter_names(graph.node)
    used = {name for node in graph.node for name in node_reads(node)} | {value.name for value in graph.output}
    kept: list[TensorProto] = []
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            continue
        if is_literal(tensor.data_type, tuple(tensor.dims), tensor.name in parameters):
            kept.append(tensor)
        else:
            ready.add_weight(tensor.name, lazy_tensor(tensor, None))
    del graph.initializer[:]
    graph.initializer.extend(kept)
