"""Corrects shapes that an ONNX model declares of computed values where its own nodes contradict them.

Declarations are hints in ONNX: its runtimes compute what the nodes say and warn. Exporters write false ones (PyTorch's
states that the signbit of a number has no dims where the node that it writes gives one).
"""

from __future__ import annotations

import onnx
from onnx import ModelProto, TypeProto

from lowerkit.capture.onnx.skeleton import OnnxGraph


def believe_inferred(ready: OnnxGraph) -> None:
    """Replaces each declared shape whose rank or extent differs from what follows from the inputs; says so.

    Raises:
        InferenceError: of ``onnx.shape_inference``, the model is invalid.
        ValueError: the same, found by another part of it.
    """
    bare = ModelProto()
    bare.CopyFrom(ready.model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(bare, check_type=True, data_prop=True).graph
    found = {value.name: value.type.tensor_type for value in (*inferred.value_info, *inferred.output)}
    for value in (*ready.graph.value_info, *ready.graph.output):
        declared, computed = value.type.tensor_type, found.get(value.name)
        if computed is None or not declared.HasField("shape") or not computed.HasField("shape"):
            continue
        if not _agree(_extents(declared), _extents(computed)):
            ready.remarks.append(
                f"the model declares {value.name!r} as {_text(declared)}, its nodes compute {_text(computed)}: "
                "the nodes are followed"
            )
            declared.shape.CopyFrom(computed.shape)


def _extents(tensor: onnx.TypeProto.Tensor) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim]


def _agree(declared: list[int | str], computed: list[int | str]) -> bool:
    return len(declared) == len(computed) and all(
        one == other or not (isinstance(one, int) and isinstance(other, int))
        for one, other in zip(declared, computed, strict=True)
    )


def _text(tensor: onnx.TypeProto.Tensor) -> str:
    return f"[{', '.join('?' if extent == '' else str(extent) for extent in _extents(tensor))}]"


def agree(left: TypeProto, right: TypeProto) -> bool:
    """Whether two declarations of a tensor may both be true: names and unknown extents agree with everything."""
    one, other = left.tensor_type, right.tensor_type
    if one.elem_type != other.elem_type:
        return False
    if not one.HasField("shape") or not other.HasField("shape"):
        return True
    return len(one.shape.dim) == len(other.shape.dim) and all(
        a.dim_value == b.dim_value or not (a.HasField("dim_value") and b.HasField("dim_value"))
        for a, b in zip(one.shape.dim, other.shape.dim, strict=True)
    )
