"""ONNX Runtime's own collectives: ``AllReduce``, ``AllGather`` and ``AllToAll`` of the domain ``com.microsoft``.

Shapes, of p ranks: AllReduce adds up tensors of one shape; AllGather joins them along an axis, p times as long;
AllToAll cuts its tensor into p parts along the first dimension, sends part r to rank r and joins what comes.

ONNX's shape inference does not know these ops: it is shown others in their stead that give the same types. The import
makes PyTorch's functional collectives of them, so that the passes know one kind. The nodes name no group; it is all
ranks, and AllGather and AllToAll say how many.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, helper

from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.capture.onnx.tensors import element_type_name
from lowerkit.errors import CaptureError, UnsupportedError
from lowerkit.mlir import ir, walk
from lowerkit.passes.raising.torch_dialect.torch_ir import constant_int, constant_string, int_list
from lowerkit.passes.source_location import op_name
from lowerkit.runtimes.mesh.structs import MeshAxis

MAXIMUM_PARTS = 1 << 20
"""How many tensors all AllGather nodes of a graph may join."""

_DOMAIN = "com.microsoft"
_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})
_MOVED = _FLOATS | {TensorProto.INT64, TensorProto.BOOL}
_ELEMENTS = {"AllReduce": _FLOATS, "AllGather": _MOVED, "AllToAll": _MOVED}
_PREFIX = "torch._c10d_functional."
_WORLD = "world"


def is_collective(node: NodeProto) -> bool:
    """Whether a node is a collective."""
    return node.domain == _DOMAIN and node.op_type in _ELEMENTS


def collective_problems(ready: OnnxGraph, node: NodeProto, types: Mapping[str, TypeProto]) -> Iterator[str]:
    """Yields what is not supported of a collective, and of a node that holds collectives; ``types``: of values."""
    if not is_collective(node):
        if any(map(is_collective, _inner_nodes(node))):
            yield "a collective in a branch or a loop, which some ranks may leave out"
        return
    if len(node.input) != 1 or len(node.output) != 1:
        yield "several tensors, or none"
    kind = types.get(node.input[0]) if node.input else None
    if kind is None:
        literals = (tensor for tensor in ready.graph.initializer if tensor.name in node.input)
        kind = next((helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in literals), None)
    element = 0 if kind is None else kind.tensor_type.elem_type
    if element not in _ELEMENTS[node.op_type]:
        yield f"elements of type {element_type_name(element) if element else 'that is not known'}"
    if node.op_type == "AllReduce":
        return
    if kind is None or not kind.tensor_type.HasField("shape") or not kind.tensor_type.shape.dim:
        yield "an operand of rank 0, or of a rank that is not known"
    if node.op_type != "AllGather":
        return
    axis = _integer(node, "axis")
    if axis is None:
        yield "it states no axis: ONNX Runtime's schema takes 1 then, and its kernel 0"
    elif axis != 0:
        yield f"the axis {axis}, which the operand does not have"


def import_collective(node: NodeProto, operand: ir.Value, result: ir.Type) -> ir.Value:
    """Imports a collective, and that it is waited for, at the insertion point; :func:`note_mesh` says who takes part.

    Args:
        node: a collective without problems.
        operand: its operand, in the torch dialect.
        result: the type of what it gives.
    """
    group = constant_string(_WORLD)
    if node.op_type == "AllReduce":
        begun = _call("all_reduce", [operand, constant_string("sum"), group], result)
    elif node.op_type == "AllGather":
        size = constant_int(_integer(node, "group_size") or 0)
        begun = _call("all_gather_into_tensor", [operand, size, group], result)
    else:
        begun = _call("all_to_all_single", [operand, int_list([]), int_list([]), group], result)
    return _call("wait_tensor", [begun], result)


def mesh_of_collectives(ready: OnnxGraph) -> list[MeshAxis]:
    """Returns the mesh that a graph communicates in: one axis, or none where it does not.

    Raises:
        UnsupportedError: LK4007, the graph does not say how many ranks there are, or says several numbers.
    """
    nodes = [node for node in ready.graph.node if is_collective(node)]
    return [MeshAxis(_WORLD, _ranks(nodes))] if nodes else []


def note_mesh(module: ir.Module, mesh: Sequence[MeshAxis]) -> None:
    """Writes into each collective of an imported module that it runs along the axis of ``mesh``."""

    def note(op: ir.Operation) -> None:
        name = op_name(op)
        if name.startswith(_PREFIX) and name != f"{_PREFIX}wait_tensor":
            (axis,) = mesh
            op.attributes["lk.axis"] = ir.StringAttr.get(axis.name)
            op.attributes["lk.ranks"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis.size)

    with module.context:
        walk(module.operation, note)


def _call(name: str, operands: Sequence[ir.Value], result: ir.Type) -> ir.Value:
    attributes = {"name": ir.StringAttr.get(f"{_PREFIX}{name}")}
    return ir.Operation.create("torch.operator", results=[result], operands=operands, attributes=attributes).result


def _ranks(nodes: Sequence[NodeProto]) -> int:
    stated: dict[int, str] = {}
    silent: list[str] = []
    for node in nodes:
        size = _integer(node, "group_size")
        if size is not None and size > 0:
            stated.setdefault(size, f"{node.op_type} (node {node.name or node.output[0]!r}): {size}")
        elif node.op_type != "AllReduce":
            silent.append(f"{node.op_type} (node {node.name or node.output[0]!r}) states no group_size of 1 or more")
    if silent:
        raise UnsupportedError(
            "LK4007",
            f"how many ranks {len(silent)} collectives have is not known",
            details=silent,
            hint="write the number of ranks into each AllGather and AllToAll as group_size",
        )
    if not stated:
        raise UnsupportedError(
            "LK4007",
            f"how many ranks the model has is not known: of its {len(nodes)} collectives all are AllReduce, which "
            "states none",
            hint="write the number of ranks into an AllReduce, as an attribute group_size (ONNX Runtime has "
            "none there), or compile the model before it was split, with --mesh",
        )
    if len(stated) > 1:
        raise UnsupportedError(
            "LK4007",
            f"the collectives of the model have groups of {', '.join(map(str, sorted(stated)))} ranks",
            details=list(stated.values()),
            hint="all of them communicate with all ranks: state one group_size",
        )
    return next(iter(stated))


def _inner_nodes(node: NodeProto) -> Iterator[NodeProto]:
    graphs = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    while graphs:
        for inner in graphs.pop().node:
            yield inner
            graphs += [attribute.g for attribute in inner.attribute if attribute.type == AttributeProto.GRAPH]


def _integer(node: NodeProto, name: str) -> int | None:
    """Returns an attribute that is an integer; None where there is none."""
    return next((a.i for a in node.attribute if a.name == name and a.type == AttributeProto.INT), None)


# Shape inference.


@contextmanager
def inferable(ready: OnnxGraph) -> Generator[None]:
    """Shows shape inference ops that it knows in place of collectives, which are there again behind it.

    They begin with an Identity, through which inference carries types and no values: each rank has its own. An
    AllGather that does not state its ranks stays, and its result has no type.

    Raises:
        CaptureError: LK2003, more tensors are joined than any model has ranks for.
    """
    collectives = {node.output[0]: _copy(node) for node in ready.graph.node if _can_stand_in(node)}
    if not collectives:
        yield
        return
    parts = sum(_integer(node, "group_size") or 0 for node in collectives.values() if node.op_type == "AllGather")
    if parts > MAXIMUM_PARTS:
        raise CaptureError(
            "LK2003",
            f"the AllGather nodes of the model join {parts} tensors in all, {MAXIMUM_PARTS} are read",
            hint="export it again; group_size is the number of ranks",
        )
    passing: set[str] = set()
    _set_nodes(ready.graph, list(_with_stand_ins(ready.graph, collectives, passing)))
    try:
        yield
    finally:
        graph = ready.graph  # of another model than before, perhaps
        nodes = [node for node in graph.node if not passing.intersection(node.output)]
        _set_nodes(graph, [collectives.get(node.output[0], node) if node.output else node for node in nodes])
        known = [value for value in graph.value_info if value.name not in passing]
        del graph.value_info[:]
        graph.value_info.extend(known)


def _can_stand_in(node: NodeProto) -> bool:
    if not is_collective(node) or len(node.input) != 1 or len(node.output) != 1:
        return False
    return node.op_type != "AllGather" or (_integer(node, "group_size") or 0) > 0


def _with_stand_ins(graph: GraphProto, collectives: dict[str, NodeProto], passing: set[str]) -> Iterator[NodeProto]:
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for number, node in enumerate(graph.node):
        if not node.output or node.output[0] not in collectives:
            yield node
        elif node.op_type != "AllGather":
            yield helper.make_node("Identity", node.input, node.output)
        else:
            own = f"{number}.own"
            while own in taken:
                own += "_"
            passing.add(own)
            yield helper.make_node("Identity", node.input, [own])
            axis, count = _integer(node, "axis") or 0, _integer(node, "group_size") or 0
            yield helper.make_node("Concat", [own] * count, node.output, axis=axis)


def _set_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(node: Any) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
