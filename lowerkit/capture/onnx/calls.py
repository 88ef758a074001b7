"""``If`` and ``Loop`` nodes whose course depends on data, as ``lk.cond`` and ``lk.while`` of imported bodies."""

# torch-mlir's importer is subclassed by what calls this; its fields are private.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TypeProto, helper, numpy_helper

from lowerkit.capture.onnx.control_flow.subgraphs import EVER, branches, loop_bodies
from lowerkit.capture.onnx.inline import unique_prefix
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.dialect import CondOp, WhileOp
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import view
from lowerkit.passes.raising.torch_dialect.torch_ir import from_builtin, tensor_info, to_builtin, type_info

if TYPE_CHECKING:
    from lowerkit.capture.onnx.node_importer import NodeImporter

ImportBody = Callable[[OnnxGraph], ir.Operation]
"""Imports a body and returns its function."""


def import_if(importer: NodeImporter, node: NodeProto, import_body: ImportBody) -> None:
    """Imports an If at the current insertion point.

    Raises:
        UnsupportedError: LK4002, the branches give values of different types.
    """
    bodies = branches(importer.ready, _types(importer.ready), node, f"{importer.ready.name}.{unique_prefix(node)}")
    one, two = (import_body(graph) for graph in bodies.graphs)
    types, others = _results(one), _results(two)
    _require_equal(node, "branches", types, others)
    predicate = to_builtin(importer._nv_map[node.input[0]])
    inputs = [to_builtin(importer._nv_map[name]) for name in bodies.captured]
    op = CondOp.build(predicate, inputs, _name(one), _name(two), [type_info(type_).builtin_type() for type_ in types])
    _bind(importer, list(node.output), list(op.operation.results), types)


def import_loop(importer: NodeImporter, node: NodeProto, import_body: ImportBody) -> None:
    """Imports a Loop at the current insertion point.

    Raises:
        UnsupportedError: LK4001, it collects values; LK4002, a carried value changes its type.
    """
    known = _types(importer.ready)
    turns, going = (node.input[index] if index < len(node.input) else "" for index in (0, 1))
    carried = list(node.input[2:])
    prefix = f"{importer.ready.name}.{unique_prefix(node)}"
    unknown = [name for name in carried if name not in known]
    if unknown:
        raise UnsupportedError("LK4002", f"the types of {', '.join(unknown)}, which a Loop carries, are not known")
    bodies = loop_bodies(importer.ready, known, node, [known[name] for name in carried], prefix)
    condition, body = (import_body(graph) for graph in bodies.graphs)
    taken = [importer._nv_map[name] for name in carried]
    wanted = [value.type for value in taken]
    _require_equal(node, "turns", wanted, _results(body)[2:])

    def number(label: str, value: object) -> ir.Value:
        return importer.import_initializer(numpy_helper.from_array(np.asarray(value), f"{prefix}.{label}"))

    first = [
        number("turn", np.int64(0)),
        _scalar(importer._nv_map[going]) if going else number("going", np.bool_(True)),
    ]
    limit = _scalar(importer._nv_map[turns]) if turns else number("turns", np.int64(EVER))
    others = [importer._nv_map[name] for name in bodies.captured]
    inputs = [to_builtin(value) for value in (*first, *taken, limit, *others)]
    op = WhileOp.build(inputs, 2 + len(carried), _name(condition), _name(body))
    _bind(importer, list(node.output), list(op.operation.results)[2:], wanted)


def _types(ready: OnnxGraph) -> dict[str, TypeProto]:
    graph = ready.graph
    types = {value.name: value.type for value in [*graph.input, *graph.value_info, *graph.output]}
    literals = {t.name: helper.make_tensor_type_proto(t.data_type, list(t.dims)) for t in graph.initializer}
    return literals | types


def _name(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _results(function: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)


def _require_equal(node: NodeProto, what: str, types: Sequence[ir.Type], others: Sequence[ir.Type]) -> None:
    unequal = [
        f"{name}: {one} and {other}"
        for name, one, other in zip(node.output, types, others, strict=False)
        if one != other
    ]
    if unequal or len(types) != len(others):
        raise UnsupportedError(
            "LK4002",
            f"the {what} of {node.op_type} (node {node.name or node.output[0]!r}) give values of different types",
            details=unequal,
            hint="shapes must not depend on data: pad the values to one shape",
        )


def _bind(importer: NodeImporter, names: Sequence[str], results: Sequence[ir.Value], types: Sequence[ir.Type]) -> None:
    for name, result, type_ in zip(names, results, types, strict=False):
        if name:
            importer._nv_map[name] = from_builtin(result, type_info(type_))


def _scalar(value: ir.Value) -> ir.Value:
    """Returns a tensor of one element as one of rank 0."""
    return view(value, []) if tensor_info(value).rank else value
