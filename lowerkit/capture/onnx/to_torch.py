"""Runs torch-mlir's conversions of ONNX nodes: here for nodes that are well known, else in a worker.

Steps
    convert    ``torch.operator "onnx.*"`` to ATen ops;
    refine     shapes, through what computes them.

Some conversions end the process on types that nobody has tried (ReduceL2 of bfloat16), so every node that is not in the
short list below is converted by a worker (:mod:`lowerkit.passes.mlir_worker`). The list is of the ops that nearly every
model has, in the element types that they have there, so that the common model pays for no worker. Weights are
references in the module, so they do not travel.
"""

from __future__ import annotations

import re

from lowerkit.mlir import ir, walk
from lowerkit.passes.mlir_worker import OP_SECONDS, module_seconds, run_here, run_in_worker

_CONVERT = "builtin.module(func.func(convert-torch-onnx-to-torch))"
_REFINE = (
    "builtin.module(func.func(canonicalize,cse,torch-scalarize-shapes,canonicalize),torch-shape-refinement-pipeline,"
    "func.func(torch-restructure-non-constant-axes,torch-scalarize-shapes,canonicalize,cse),torch-refine-public-return)"
)

_WELL_KNOWN = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Sin", "Cos"),
        *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Gelu", "HardSigmoid", "HardSwish", "Clip", "Softmax"),
        *(
            "Equal",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "And",
            "Or",
            "Not",
            "Where",
            "Min",
            "Max",
            "Sum",
            "IsNaN",
        ),
        *("Conv", "Gemm", "MatMul", "BatchNormalization", "LayerNormalization", "InstanceNormalization"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "LRN", "ReduceMean", "ReduceSum"),
        *("Concat", "Reshape", "Transpose", "Flatten", "Unsqueeze", "Squeeze", "Slice", "Split", "Expand", "Gather"),
        *("GatherElements", "Pad", "Cast", "Identity", "Dropout", "Shape", "Constant"),
    }
)
_WELL_KNOWN_TYPE = re.compile(r"!torch\.none|!torch\.vtensor<\[(?:(?:[1-9]\d*|\?),?)*\],(?:f32|si64|i1)>")
"""Tensors without elements are not well known."""


def onnx_name(operation: ir.Operation) -> str | None:
    """Returns ``onnx.<op>`` for an op that stands for an ONNX node, None for others."""
    if operation.name != "torch.operator":
        return None
    name = ir.StringAttr(operation.attributes["name"]).value
    return name if name.startswith("onnx.") else None


def onnx_operations(module: ir.Module) -> list[ir.Operation]:
    """Returns the ops that stand for ONNX nodes, in order."""
    found: list[ir.Operation] = []
    walk(module.operation, lambda op: found.append(op) if onnx_name(op) else None)
    return found


def convert(module: ir.Module) -> None:
    """Converts an imported module in place; an ONNX node that has no conversion may remain.

    Raises:
        ConversionError: a conversion failed, and the module may be half converted.
    """
    nodes = onnx_operations(module)
    _run(module, nodes, (_CONVERT, _REFINE), module_seconds(len(nodes)))


def convert_alone(module: ir.Module, *, refine: bool) -> None:
    """Converts a module of one node as :func:`convert` does, but within the time of one op.

    Args:
        module: it has one ONNX node and the constants that the node reads.
        refine: whether the shapes are refined too.

    Raises:
        ConversionError: the conversion failed.
    """
    _run(module, onnx_operations(module), (_CONVERT, _REFINE) if refine else (_CONVERT,), OP_SECONDS)


def _run(module: ir.Module, nodes: list[ir.Operation], pipelines: tuple[str, ...], seconds: float) -> None:
    if all(map(is_well_known, nodes)):
        run_here(module, pipelines)
    else:
        run_in_worker(module, pipelines, seconds)


def is_well_known(node: ir.Operation) -> bool:
    """Whether a node is of an op and of element types that nearly every model has."""
    if (onnx_name(node) or "").removeprefix("onnx.") not in _WELL_KNOWN or len(node.regions) > 0:
        return False
    return all(_WELL_KNOWN_TYPE.fullmatch(str(value.type)) for value in (*node.operands, *node.results))
