"""Gives functions builtin types, where before it values of the torch dialect stand between casts; the last of raising.

Steps
    sweep   what nobody reads goes: constants, lists, ops whose readers a rule has replaced;
    check   an op of the torch dialect that remains is one that no rule took: all are reported at once, each with its
            source line and the reason that its rule gave;
    types   signatures change, pairs of casts go (torch-mlir's conversion of types, which computes nothing);
    returns what a function returns is cast to the static dims that it declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir, run_pipeline, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import erase_unread
from lowerkit.passes.source_location import describe, op_name, signature_text

_TYPES = (
    "builtin.module(torch-func-backend-type-conversion,"
    "func.func(canonicalize,torch-finalizing-backend-type-conversion,canonicalize,cse))"
)
_ARGUMENTS = ("torch.constant.", "torch.prim.ListConstruct", "torch_c.")


@dataclass(frozen=True)
class LowerTypes(Pass):
    """Turns a raised module of the torch dialect into one of builtin tensors.

    Precondition: the ``raise-*`` passes have run, or what they take is refused here. After it functions take and give
    builtin tensors and hold no torch op.
    """

    name: ClassVar[str] = "lower-types"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Lowers in place.

        Raises:
            UnsupportedError: LK4001, with one detail for each distinct op that no rule took.
        """
        functions = [op.operation for op in module.body.operations]
        signatures = " ".join(str(function.attributes["function_type"]) for function in functions)
        if not _torch_ops(module) and "!torch." not in signatures:
            return False
        sweep(module)
        remaining = unraised(module)
        if remaining:
            raise unsupported(dict.fromkeys(remaining, ""), context)
        run_pipeline(module, _TYPES)
        for op in module.body.operations:
            return_declared_types(op.operation)
        return True


def sweep(module: ir.Module) -> bool:
    """Erases what nobody reads; returns whether there was any."""
    blocks = [block for function in module.body.operations for block in function.operation.regions[0].blocks]
    swept = [erase_unread(block) for block in blocks]  # all of them
    return any(swept)


def unraised(module: ir.Module) -> list[ir.Operation]:
    """Returns the torch ops that no rule took."""
    return [op for op in _torch_ops(module) if not op.name.startswith(_ARGUMENTS)]


def _torch_ops(module: ir.Module) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name.startswith(("torch.", "torch_c.")):
            found.append(op)

    walk(module.operation, collect)
    return found


def return_declared_types(function: ir.Operation) -> None:
    """Casts what a function returns to what it declares: rules know more of extents, or less, than the op did."""
    declared = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    for block in function.regions[0].blocks:
        end = list(block.operations)[-1].operation
        for index, (value, wanted) in enumerate(zip(end.operands, declared, strict=True)):
            if value.type != wanted:
                with ir.InsertionPoint(end), value.location:
                    cast = ir.Operation.create("tensor.cast", results=[wanted], operands=[value])
                end.operands[index] = cast.result


def unsupported(ops: Mapping[ir.Operation, str], context: PassContext) -> UnsupportedError:
    """The error that names each op, and why no rule took it, or else the reason that ``ops`` gives."""
    details: dict[str, None] = {}
    for op, other in ops.items():
        reason = context.refusals.get(f"{op_name(op)} {op.location}") or other
        details[f"{signature_text(op)} at {describe(op)}{f': {reason}' if reason else ''}"] = None
    count = len({op_name(op) for op in ops})
    return UnsupportedError(
        "LK4001",
        f"the model uses {count} op{'s' if count != 1 else ''} that cannot be lowered",
        details=sorted(details),
        hint="replace these ops in the model, or add a rule for them: docs/contributing.md has the recipe",
    )
