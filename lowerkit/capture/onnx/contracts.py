"""The contracts of the operators that ONNX nodes stand for: checks of indices, and guards on sizes.

What torch-mlir writes a node out of no longer tells what it asks, so the checks are made of the nodes themselves. An
index that is constant, and in range of extents that are known, needs none. Guards are of nodes too; beside them the
conversion asserts conditions on sizes. It converts what repeats an extent of 1 (``Expand(x, shape)``) as if an extent
that is not known were none that is repeated, and asserts that it is at least what is asked for: it is that, or 1 is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from lowerkit.capture.contracts.table import ONNX_NODES, contract_of
from lowerkit.capture.contracts.vocabulary import Call, Contract, Lookup
from lowerkit.capture.onnx.rewrites.rewriter import IN_RANGE
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.errors import CaptureError
from lowerkit.mlir import ir
from lowerkit.passes.raising.raise_ops.raise_index_checks import CHECKED_INDICES
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    constant_string,
    int_list,
    tensor_info,
)
from lowerkit.runtimes.conditions import Condition, simplify_condition
from lowerkit.runtimes.expressions import Expr, simplify
from lowerkit.runtimes.manifest import Guard, TensorSpec

_RELATIONS = {"ge": ("le", True), "gt": ("lt", True), "le": ("le", False), "lt": ("lt", False), "eq": ("eq", False)}
"""torch's name -> relation, and whether the sides change places."""
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}


def _contract(op_type: str) -> Contract:
    return contract_of(ONNX_NODES[op_type][0]) if op_type in ONNX_NODES else Contract()


def _arguments(node: NodeProto, operands: Sequence[Any]) -> dict[str, Any]:
    """The operands and attributes of a node by the names that its contract has for them."""
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    named = ONNX_NODES[node.op_type][1].items()
    return {name: operands[own] if isinstance(own, int) else given.get(*own) for name, own in named}


# Indices, when a program runs.


def checked_operands(
    node: NodeProto, operands: list[ir.Value], constant: Callable[[str], np.ndarray[Any, Any] | None]
) -> list[ir.Value]:
    """Returns the operands of a node, its indices checked where it looks up by them.

    Args:
        node: any node.
        operands: in the torch dialect.
        constant: gives the value of a name where it is constant.

    Raises:
        CaptureError: LK2003, the tensor has fewer axes than are indexed.
    """
    found = list(operands)
    if not _contract(node.op_type).places or any(entry.key == IN_RANGE for entry in node.metadata_props):
        return found
    try:
        infos = {value: tensor_info(value) for value in operands[:2]}
        arguments = _arguments(node, operands)
        call = Call(arguments, lambda value: infos[value].shape if value in infos else None)
        lookups = [lookup for places in _contract(node.op_type).places for lookup in places.lookups(call)]
    except RefusalError:
        return found  # of no known rank: nothing converts the node
    for lookup in lookups:
        literal = constant(node.input[operands.index(lookup.index)])
        checked = _checked(node, lookup, infos[lookup.data], literal)
        found = [checked if value == lookup.index else value for value in found]
    return found


def _checked(node: NodeProto, lookup: Lookup, data: TensorInfo, literal: np.ndarray[Any, Any] | None) -> ir.Value:
    axis = max(lookup.dims, default=0)
    if not 0 <= axis < data.rank and (lookup.dims or not lookup.places.parts):
        raise _invalid(node, f"indexes axis {axis} of {node.input[0]!r}, which has {data.rank} axes")
    sizes = [data.shape[axis] for axis in lookup.dims]
    if not sizes or (literal is not None and _in_range(literal, sizes)):
        return lookup.index
    integer = ir.Type.parse("!torch.int")
    extents = [
        size if size is not None else build("torch.aten.size.int", [lookup.data, constant_int(axis)], [integer])[0]
        for axis, size in zip(lookup.dims, sizes, strict=True)
    ]
    wraps = constant_bool(lookup.places.wraps)
    asked = [lookup.index, int_list(extents), wraps, constant_none(), constant_string(node.op_type)]
    attribute = {"name": ir.StringAttr.get(CHECKED_INDICES)}
    return ir.Operation.create(
        "torch.operator", results=[lookup.index.type], operands=asked, attributes=attribute
    ).results[0]


def _in_range(indices: np.ndarray[Any, Any], sizes: Sequence[int | None]) -> bool:
    if not indices.size or None in sizes:
        return not indices.size
    limits, parts = np.asarray(sizes, np.int64), indices.astype(np.int64).reshape(-1, len(sizes))
    return bool(((parts >= -limits) & (parts < limits)).all())


# Sizes.


def needed_guards(ready: OnnxGraph, shapes: Mapping[str, Sequence[Expr | None]]) -> Iterator[Guard]:
    """Yields what nodes need of sizes.

    Args:
        ready: the graph.
        shapes: of its values in the dims of the inputs, None for extents that are not known.

    Raises:
        CaptureError: LK2003, a node needs what it has at no sizes.
    """
    literals = {tensor.name: tensor for tensor in ready.graph.initializer}
    for node in [node for node in ready.graph.node if _contract(node.op_type).needs]:
        values = [numpy_helper.to_array(literals[name]) if name in literals else name for name in node.input]
        values = [value if isinstance(value, str) or value.size != 1 else value.item() for value in values]
        call = Call(_arguments(node, values), lambda value: shapes.get(value) if isinstance(value, str) else None)
        for need in [need for rule in _contract(node.op_type).needs for need in rule(call)]:
            assert need.relation == "at least", "what nodes need"
            condition = need.extent is None or simplify_condition(("le", need.other, need.extent))
            if condition is False:
                raise _invalid(node, f"needs {need.other} elements along an axis of {need.extent}")
            if not isinstance(condition, bool):
                yield Guard(condition, operator=f"{node.op_type} {node.name or node.output[0]}")


def _invalid(node: NodeProto, what: str) -> CaptureError:
    return CaptureError(
        "LK2003",
        f"{node.op_type} {what}",
        op=node.name or node.output[0],
        hint="the model is invalid, though ONNX's checker lets it pass: export it again with other shapes",
    )


def asserted_guards(module: ir.Module, inputs: Sequence[TensorSpec]) -> Iterator[Guard]:
    """Yields the assertions of ``@main`` that are conditions on the dims of ``inputs``, its arguments."""
    function = ir.SymbolTable(module.operation)["main"]
    block = function.regions[0].blocks[0]
    for op in block.operations:
        if op.operation.name != "torch.runtime.assert":
            continue
        message = ir.StringAttr(op.operation.attributes["message"]).value
        repeats = any(f"onnx.{name}" in message for name in ONNX_NODES if _contract(name).repeats)
        condition = _condition(op.operation.operands[0], block, inputs, repeats=repeats)
        if condition is not None and not isinstance(condition, bool):
            yield Guard(condition)


def _condition(
    value: ir.Value, block: ir.Block, inputs: Sequence[TensorSpec], *, repeats: bool
) -> Condition | bool | None:
    """A comparison of sizes; None where it is none."""
    owner = value.owner
    name = "" if isinstance(owner, ir.Block) else owner.operation.name
    relation, swapped = _RELATIONS.get(name.removeprefix("torch.aten.").removesuffix(".int"), ("", False))
    if isinstance(owner, ir.Block) or not relation or not name.endswith(".int"):
        return None
    one, other = (_expression(operand, block, inputs) for operand in owner.operation.operands)
    if one is None or other is None:
        return None
    if repeats and name == "torch.aten.ge.int":
        return simplify_condition(("or", ("eq", one, other), ("eq", other, 1)))
    return simplify_condition((relation, other, one) if swapped else (relation, one, other))


def _expression(value: ir.Value, block: ir.Block, inputs: Sequence[TensorSpec]) -> Expr | None:
    """An integer that is made of the sizes of inputs; None where it is not."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if op.name == "torch.constant.int":
        return ir.IntegerAttr(op.attributes["value"]).value
    if op.name == "torch.aten.size.int":
        axis = _expression(op.operands[1], block, inputs)
        source = op.operands[0]
        if not isinstance(axis, int) or not isinstance(source.owner, ir.Block) or source.owner != block:
            return None
        shape = inputs[ir.BlockArgument(source).arg_number].shape
        return shape[axis] if -len(shape) <= axis < len(shape) else None
    operator = _ARITHMETIC.get(op.name.removeprefix("torch.aten.").removesuffix(".int"))
    if operator is None or not op.name.endswith(".int"):
        return None
    one, other = (_expression(operand, block, inputs) for operand in op.operands)
    return None if one is None or other is None else simplify((operator, one, other))
