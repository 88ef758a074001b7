"""Folds what an ONNX graph computes from constants: shape arithmetic, masks, position ids, ConstantOfShape.

One sweep in graph order, with ONNX's own reference implementation, so that the values are those of the standard.
Weights are not read, with one exception that costs nothing: ConstantOfShape becomes a weight that is one number seen
through zero strides. Bounds: an input of at most :data:`READ_ELEMENTS`, an output of at most :data:`WRITE_ELEMENTS`,
known before anything is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from lowerkit.capture.onnx.tensors import LazyTensor, data_type_of, element_count
from lowerkit.errors import ResourceError
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.weights import Array

if TYPE_CHECKING:
    from lowerkit.capture.onnx.skeleton import OnnxGraph

READ_ELEMENTS = 1 << 18
WRITE_ELEMENTS = 1 << 20
TINY_ELEMENTS = 64
"""Inputs so small that no op makes much of them, so that the output's shape need not be known."""

LARGEST_CONSTANT_BYTES = 64 << 30

_GROWING = frozenset({"ConstantOfShape", "Expand", "Tile", "Range", "Resize", "Pad", "Upsample", "OneHot", "EyeLike"})
_NEVER = frozenset(
    {"If", "Loop", "Scan", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"}
    | {"Multinomial", "Dropout", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
)
KeepAsLiteral = Callable[[int, tuple[int, ...], bool], bool]


def fold_constants(ready: OnnxGraph, keep: KeepAsLiteral) -> bool:
    """Folds in one sweep; returns whether anything changed. ``keep(data_type, shape, is_parameter)``: literal or not.

    Raises:
        ResourceError: LK7002, ConstantOfShape asks for a constant that no machine holds.
    """
    graph = ready.graph
    literals = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values = [*graph.input, *graph.value_info, *graph.output]
    types = {value.name: value.type.tensor_type for value in values}
    outputs = {value.name for value in graph.output}
    opset = next((entry.version for entry in ready.model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    remaining: list[NodeProto] = []
    changed = False
    for node in graph.node:
        results = None
        known = {tensor for tensor in node.output if tensor in outputs}
        if node.domain in ("", "ai.onnx") and not (known and node.op_type == "Identity"):
            results = _evaluate(node, literals, types, opset)
        if results is None:
            remaining.append(node)
            continue
        changed = True
        for output, result in zip(node.output, results, strict=False):
            if not output:
                continue
            name = output
            if output in known:  # an output is computed by a node
                name = f"{output}.folded"
                remaining.append(onnx.helper.make_node("Identity", [name], [output], name=node.name))
            if isinstance(result, LazyTensor) and not keep(data_type_of(result.dtype), result.shape, True):
                ready.add_weight(name, result)
                continue
            # Literal for the rounds of folding; which of them become weights is decided after the last.
            literals[name] = np.array(result.read()) if isinstance(result, LazyTensor) else result
            graph.initializer.append(numpy_helper.from_array(literals[name], name))
    del graph.node[:]
    graph.node.extend(remaining)
    if changed:
        folded = set(literals) | set(ready.weights)
        kept = [value for value in graph.value_info if value.name not in folded]
        del graph.value_info[:]
        graph.value_info.extend(kept)
    return changed


def _evaluate(
    node: NodeProto, literals: dict[str, Array], types: dict[str, Any], opset: int
) -> list[Array | LazyTensor] | None:
    if node.op_type == "Shape":
        return _shape_of(node, types)
    if node.op_type == "ConstantOfShape" and node.input[0] in literals:
        return [_constant_of_shape(node, literals[node.input[0]])]
    if node.op_type in _NEVER or any(name and name not in literals for name in node.input):
        return None
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return None
    inputs = {name: literals[name] for name in node.input if name}
    if any(array.size > READ_ELEMENTS for array in inputs.values()) or not _outputs_are_small(node, inputs, types):
        return None
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.helper.make_value_info(name, _type_of(array)) for name, array in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # the reference implementation raises what it likes; then the node simply stays
        return None
    found = iter(results if isinstance(results, list) else [results])
    arrays = [np.asarray(next(found)) if name else np.empty(0) for name in node.output]
    return list(arrays) if all(array.dtype in _SUPPORTED for array in arrays) else None


_SUPPORTED = frozenset(NUMPY_DTYPES.values())


def _type_of(array: Array) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def static_shape(tensor_type: Any) -> tuple[int, ...] | None:
    """Returns the shape of an ONNX tensor type where all of it is known."""
    if tensor_type is None or not tensor_type.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor_type.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor_type.shape.dim)


def _outputs_are_small(node: NodeProto, inputs: dict[str, Array], types: dict[str, Any]) -> bool:
    shapes = [static_shape(types.get(name)) for name in node.output if name]
    if all(shape is not None for shape in shapes):
        return all(element_count(shape) <= WRITE_ELEMENTS for shape in shapes if shape is not None)
    return node.op_type not in _GROWING and all(array.size <= TINY_ELEMENTS for array in inputs.values())


def _shape_of(node: NodeProto, types: dict[str, Any]) -> list[Array | LazyTensor] | None:
    shape = static_shape(types.get(node.input[0]))
    if shape is None:
        return None
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]


def _constant_of_shape(node: NodeProto, extents: Array) -> LazyTensor:
    value = next((numpy_helper.to_array(attribute.t) for attribute in node.attribute), np.zeros(1, np.float32))
    shape = tuple(int(extent) for extent in extents)
    dtype = next((name for name, dtype in NUMPY_DTYPES.items() if dtype == value.dtype), None)
    count = element_count(shape)
    if dtype is None or min(shape, default=0) < 0 or count * value.itemsize > LARGEST_CONSTANT_BYTES:
        raise ResourceError("LK7002", f"node {node.name or node.output[0]!r} makes a constant of shape {shape}")
    return LazyTensor(dtype, shape, lambda: np.broadcast_to(value.reshape(()), shape))


def replace_constants_of_shape(model: ModelProto, make: Callable[[str, tuple[int, ...]], Array]) -> ModelProto:
    """Returns a copy in which each float ConstantOfShape of constant shape is an initializer ``make(name, shape)``.

    For models that ship without weights (onnx's own ``light`` models): with all weights equal, a comparison of
    outputs says nothing. ``name`` is the weight's, ``make`` returns float32.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    remaining: list[NodeProto] = []
    for node in graph.node:
        is_float = all(attribute.t.data_type == TensorProto.FLOAT for attribute in node.attribute)
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes and is_float:
            shape = tuple(int(extent) for extent in shapes[node.input[0]])
            graph.initializer.append(numpy_helper.from_array(make(node.output[0], shape), node.output[0]))
        else:
            remaining.append(node)
    del graph.node[:]
    graph.node.extend(remaining)
    copy.ir_version = max(copy.ir_version, 4)
    return copy
