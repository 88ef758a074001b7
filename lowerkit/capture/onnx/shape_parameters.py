"""Inputs of an ONNX model that shapes depend on: target shapes, axes, pads, sizes.

ONNX passes most parameters of its ops as operands, so a model may take them as inputs. A shape is known at compile time
here, so such an input has to be given a value then: :func:`parameter_inputs` names them, :func:`fix_inputs` turns
inputs with values into constants of the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto

from lowerkit.errors import UsageError
from lowerkit.program.program import Array

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
PARAMETER_OPERANDS: dict[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Op -> the operands whose values decide the shape of the result, or which elements it takes."""

_VALUE_FREE = frozenset({"Shape", "Size"})
_LARGEST = 64
"""Elements of a parameter at most; what is larger, or of a higher rank than one, is data."""


def parameter_inputs(model: ModelProto) -> list[str]:
    """Returns the inputs whose values shapes depend on, in the order of the model's inputs.

    These are small tensors of rank 0 or 1 from which a parameter operand is computed, directly or through other nodes.
    """
    graph = model.graph
    wanted: set[str] = set()
    _collect(graph, wanted)
    constants = {tensor.name for tensor in graph.initializer}
    return [
        value.name
        for value in graph.input
        if value.name in wanted and value.name not in constants and _is_small(value.type.tensor_type)
    ]


def _collect(graph: GraphProto, wanted: set[str]) -> None:
    """Adds the values that parameters are computed from, those that subgraphs read from outside too."""
    for node in reversed(graph.node):
        if node.domain not in ("", "ai.onnx"):
            continue
        operands = PARAMETER_OPERANDS.get(node.op_type, ())
        wanted.update(node.input[index] for index in operands if index < len(node.input))
        is_wanted = node.op_type not in _VALUE_FREE and bool(wanted.intersection(node.output))
        if is_wanted:
            wanted.update(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                if is_wanted:
                    wanted.update(value.name for value in attribute.g.output)
                _collect(attribute.g, wanted)


def _is_small(tensor_type: onnx.TypeProto.Tensor) -> bool:
    dims = tensor_type.shape.dim
    return tensor_type.HasField("shape") and len(dims) <= 1 and all(dim.dim_value <= _LARGEST for dim in dims)


def fix_inputs(graph: GraphProto, values: Mapping[str, Array]) -> None:
    """Turns inputs into constants of the graph.

    Raises:
        UsageError: LK1003, names that are no inputs of the graph; all of them.
    """
    named = {value.name for value in graph.input}
    unknown = sorted(values.keys() - named)
    if unknown:
        raise UsageError(
            "LK1003", "values were given for inputs that the model does not have", details=[repr(n) for n in unknown]
        )
    kept = [value for value in graph.input if value.name not in values]
    del graph.input[:]
    graph.input.extend(kept)
    replaced = [tensor for tensor in graph.initializer if tensor.name not in values]
    del graph.initializer[:]
    graph.initializer.extend(replaced)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
