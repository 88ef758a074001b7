"""Removes ops of the torch dialect that do nothing at inference, and spells the rest uniformly.

What goes: copies (values have no identity here), dropout outside of training, conversions to the type that a value
has, assertions about shapes that the signature states, bindings of symbolic shapes, choices between a value and
itself. What is respelled: ``__and__`` and its kind. Patterns and rules after this pass need to know one spelling only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, apply_rules
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    RefusalError,
    bool_of,
    build,
    like_result,
    tensor_info,
    try_number,
)
from lowerkit.passes.source_location import op_name

_STATEMENTS = frozenset(
    {
        "torch.bind_symbolic_shape",
        "torch.aten._assert_tensor_metadata",
        "torch.aten._assert_scalar",
        "torch.runtime.assert",
    }
)
"""Ops without a result, or with one that nobody needs, whose content the signature of the program states."""

_RESPELLED = {
    "torch.aten.__and__.Tensor": "torch.aten.bitwise_and.Tensor",
    "torch.aten.__and__.Scalar": "torch.aten.bitwise_and.Scalar",
    "torch.aten.__or__.Tensor": "torch.aten.bitwise_or.Tensor",
    "torch.aten.__xor__.Tensor": "torch.aten.bitwise_xor.Tensor",
    "torch.aten.concat": "torch.aten.cat",
    "torch.aten.concatenate": "torch.aten.cat",
    "torch.aten.multiply.Tensor": "torch.aten.mul.Tensor",
    "torch.aten.true_divide.Tensor": "torch.aten.div.Tensor",
    "torch.aten.reshape_as": "torch.aten.view_as",
}


def _first_operand(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return like_result(op.operands[0], op)


def _convert(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Any conversion of the element type becomes ``to.dtype``; the type of the result says which."""
    source, result = tensor_info(op.operands[0]), tensor_info(op.results[0])
    if source.dtype == result.dtype:
        return like_result(op.operands[0], op)
    if op.name == "torch.aten.to.dtype":
        raise NotConcernedError("already spelled as it should be")
    return like_result(cast(op.operands[0], result.dtype), op)


def _same_shape(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """A view, an expansion or a slice that gives what it takes."""
    source, result = tensor_info(op.operands[0]), tensor_info(op.results[0])
    if source != result or None in source.shape:
        raise NotConcernedError("the shape changes, or may change")
    if op.name == "torch.aten.slice.Tensor" and try_number(op.operands[4]) != 1:
        raise NotConcernedError("a slice that turns around")
    return [op.operands[0]]


def _dropout(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """dropout: (input, p, train)."""
    if bool_of(op.operands[2]):
        raise RefusalError("dropout in training mode: call model.eval() before capture")
    return like_result(op.operands[0], op)


def _native_dropout(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
    """native_dropout: (input, p, train) -> (output, mask)."""
    if bool_of(op.operands[2], default=True) or not is_unused(op.results[1]):
        raise RefusalError("dropout in training mode: call model.eval() before capture")
    return [*like_result(op.operands[0], op), None]


def _respell(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return build(_RESPELLED[op_name(op)], list(op.operands), [op.results[0].type])


_RULES: dict[str, Rule] = {
    **{
        f"torch.aten.{name}": _first_operand
        for name in ("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "lift_fresh", "lift", "detach_copy")
    },
    "torch.prims.view_of": _first_operand,
    **{
        f"torch.aten.{name}": _same_shape
        for name in ("view", "reshape", "_unsafe_view", "expand", "broadcast_to", "slice.Tensor", "flatten.using_ints")
    },
    "torch.aten.dropout": _dropout,
    "torch.aten.alpha_dropout": _dropout,
    "torch.aten.feature_dropout": _dropout,
    "torch.aten.native_dropout": _native_dropout,
    "torch.aten._to_copy": _convert,
    "torch.aten.to.dtype": _convert,
    "torch.aten.to.dtype_layout": _convert,
    "torch.aten.to.device": _convert,
    "torch.aten.to.other": _convert,
    "torch.aten.to.prim_Device": _convert,
    "torch.aten.type_as": _convert,
    "torch.prims.convert_element_type": _convert,
    **dict.fromkeys(_RESPELLED, _respell),
}


@dataclass(frozen=True)
class SimplifyTorch(Pass):
    """Removes what does nothing from a module of the torch dialect. Precondition: none."""

    name: ClassVar[str] = "simplify-torch"
    rules: ClassVar[Mapping[str, Rule]] = _RULES

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Simplifies in place."""
        statements: list[ir.Operation] = []

        def collect(op: ir.Operation) -> None:
            if op_name(op) in _STATEMENTS and all(is_unused(result) for result in op.results):
                statements.append(op)

        walk(module.operation, collect)
        for statement in statements:
            statement.erase()
        changed = apply_rules(module, self.rules, self.name, context)
        return changed or bool(statements)
