"""From a ready ONNX graph to the captured form: torch dialect, weights by reference, a location on every op.

Each node becomes ops by a rule (:mod:`nodes`). Nodes without one, or which theirs does not take, are replaced by what
the standard defines them by, if it does; what is left then is refused, all at once.
"""

from __future__ import annotations

import warnings

import onnx

# The importers are part of torch-mlir, not of the MLIR bindings that `lowerkit.mlir` stands for.
from torch_mlir.extras import onnx_importer as upstream

from lowerkit.capture.onnx.collectives import collective_problems, is_collective
from lowerkit.capture.onnx.node_importer import CONTROL_FLOW, NodeImporter
from lowerkit.capture.onnx.prepare import expand_ops
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.capture.onnx.tensors import DTYPE_NAMES, element_type_name, is_scalar
from lowerkit.errors import CaptureError, UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.dead_ops import erase_unread

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def import_onnx(ready: OnnxGraph, context: ir.Context) -> ir.Module:
    """Imports a graph to a function of its name, ``@main``, with those of its bodies behind it.

    Raises:
        UnsupportedError: LK4001, with every node that cannot be expressed, or that no rule takes.
        CaptureError: LK2003, the graph is not in topological order, lacks types, or contradicts itself.
    """
    while True:
        _refuse_unsupported(ready)
        ready.bodies.clear()
        functions: list[ir.Module] = []
        module, refused = _import(ready, context, functions)
        if not refused:
            break
        if not expand_ops(ready, {("", op_type) for op_type in refused.values()}):
            raise _unsupported(list(refused))
    _finish(module)
    for part in functions:
        for op in list(part.body.operations):
            op.operation.detach_from_parent()
            with context:
                ir.InsertionPoint(module.body).insert(op.operation)
    return module


def _finish(module: ir.Module) -> None:
    """Drops what nothing reads, and declares the results as they are computed."""
    function = module.body.operations[0].operation
    block = function.regions[0].blocks[0]
    erase_unread(block)
    results = [value.type for value in block.operations[len(block.operations) - 1].operation.operands]
    with module.context:
        kind = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        function.attributes["function_type"] = ir.TypeAttr.get(kind)


def _refuse_unsupported(ready: OnnxGraph) -> None:
    """Finds what is known beforehand to be inexpressible: foreign domains, control flow, element types, crashes."""
    graph = ready.graph
    found: list[str] = []
    types = {value.name: value.type for value in [*graph.input, *graph.value_info, *graph.output]}
    for index, node in enumerate(graph.node):
        what = f"{node.op_type} (node {node.name or index!r})"
        found += [f"{what}: {text}" for text in collective_problems(ready, node, types)]
        if node.domain not in ("", "ai.onnx") and not is_collective(node):
            found.append(f"{node.domain}.{what}: custom domain")
        elif node.op_type not in CONTROL_FLOW and any(
            attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute
        ):
            found.append(f"{what}: control flow")
        elif node.op_type in _RANDOM:
            found.append(f"{what}: random values")
        elif node.op_type == "Einsum" and any(is_scalar(types.get(name)) for name in node.input):
            found.append(f"{what}: a scalar operand")
        for name in node.output:
            value = types.get(name)
            if value is None or not name:
                continue
            if value.WhichOneof("value") != "tensor_type":
                found.append(f"{what}: {name!r} is a {value.WhichOneof('value') or 'value of unknown type'}")
            elif value.tensor_type.elem_type not in DTYPE_NAMES:
                found.append(f"{what}: {name!r} has element type {element_type_name(value.tensor_type.elem_type)}")
    if found:
        raise _unsupported(found)


def _import(ready: OnnxGraph, context: ir.Context, functions: list[ir.Module]) -> tuple[ir.Module, dict[str, str]]:
    """Returns the module, and of each node that no rule took, what to say of it and its operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            info = upstream.ModelInfo(ready.model)
            module = info.create_module(context)
            importer = NodeImporter.define_main(ready, info.main_graph, module.operation)
            importer.functions, importer.import_graph = functions, import_onnx
            importer.import_all()
        except (upstream.OnnxImportError, KeyError, TypeError, ValueError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise CaptureError("LK2003", f"the ONNX graph cannot be imported: {first}") from error
    return module, importer.refused


def _unsupported(found: list[str]) -> UnsupportedError:
    return UnsupportedError("LK4001", f"{len(found)} ONNX nodes are not supported", details=found)
