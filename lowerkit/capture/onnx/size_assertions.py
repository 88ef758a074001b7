"""Conditions on sizes that the conversion of ONNX operators asserts: they become guards of the signature.

``Expand(x, shape)`` is converted as if an extent of ``x`` that is not known were none that is repeated, and asserts
that it is at least what is asked for. It is that, or 1 is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.runtimes.conditions import Condition, simplify_condition
from lowerkit.runtimes.expressions import Expr, simplify
from lowerkit.runtimes.manifest import Guard, TensorSpec

_RELATIONS = {"ge": ("le", True), "gt": ("lt", True), "le": ("le", False), "lt": ("lt", False), "eq": ("eq", False)}
"""torch's name -> relation, and whether the sides change places."""
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}


def size_guards(module: ir.Module, inputs: Sequence[TensorSpec]) -> list[Guard]:
    """Returns the assertions of ``@main`` that are conditions on the dims of ``inputs``, its arguments."""
    function = ir.SymbolTable(module.operation)["main"]
    block = function.regions[0].blocks[0]
    found: dict[Condition, Guard] = {}
    for op in block.operations:
        if op.operation.name != "torch.runtime.assert":
            continue
        is_expansion = "onnx.Expand" in ir.StringAttr(op.operation.attributes["message"]).value
        condition = _condition(op.operation.operands[0], block, inputs, is_expansion=is_expansion)
        if condition is not None and not isinstance(condition, bool):
            found.setdefault(condition, Guard(condition, ""))
    return list(found.values())


def _condition(
    value: ir.Value, block: ir.Block, inputs: Sequence[TensorSpec], *, is_expansion: bool
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
    if is_expansion and name == "torch.aten.ge.int":
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
