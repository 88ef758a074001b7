"""Which ONNX nodes torch-mlir's conversion does not take.

It stops at the first, and may crash or never end: so each op is tried alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from lowerkit.capture.onnx.to_torch import convert_alone, onnx_name, onnx_operations
from lowerkit.errors import CaptureError, UnsupportedError
from lowerkit.mlir import func, ir
from lowerkit.passes.mlir_worker import ConversionError
from lowerkit.program.locations import origin_of


class UnconvertedError(UnsupportedError):
    """Nodes of the standard for which torch-mlir has no conversion that works; ``op_types`` are their types.

    Args:
        operations: they, each with the reason where it is more than that nothing converts it.
    """

    def __init__(self, operations: Mapping[ir.Operation, str]) -> None:
        super().__init__(
            "LK4001",
            f"{len(operations)} ONNX nodes are not supported",
            details=[f"{_describe(op)}{reason and f': {reason}'}" for op, reason in operations.items()],
        )
        self.op_types = {(onnx_name(operation) or "").removeprefix("onnx.") for operation in operations}


def raise_unconverted(text: str, context: ir.Context, error: ConversionError) -> NoReturn:
    """Tries each op of the unconverted module alone and raises with those that fail.

    Raises:
        UnconvertedError: LK4001, with every node that has no conversion, or one that crashes or does not end.
        CaptureError: LK2003, an output is declared as another type than what is computed; LK2001, none fails alone.
    """
    try:
        module = ir.Module.parse(text, context=context)
    except ir.MLIRError as invalid:
        details = [line.strip() for line in str(invalid).splitlines()[1:2]]
        raise CaptureError(
            "LK2003", "the ONNX model contradicts itself", details=details, hint="export it again"
        ) from error
    failing: dict[ir.Operation, str] = {}
    known: dict[str, str | None] = {}
    for operation in onnx_operations(module):
        if onnx_name(operation) == "onnx.Constant":
            continue
        text = _alone(operation)
        if text not in known:
            known[text] = _failure(text, module.context, refine=error.died)
        reason = known[text]
        if reason is not None:
            failing[operation] = reason
    if failing:
        raise UnconvertedError(failing) from error
    hint = "each node converts alone: this is a bug of lowerkit" if error.died else None
    raise CaptureError("LK2001", f"the ONNX graph could not be converted: {error}", hint=hint) from error


def _alone(operation: ir.Operation) -> str:
    """Returns the text of a module with ``operation`` as the only one; constant operands come along."""
    function = operation.parent
    assert function is not None, "the op is inside a function"
    module = ir.Module.create(ir.Location.unknown(operation.context))
    constants = [
        isinstance(operand.owner, ir.Operation) and _is_constant(operand.owner) for operand in operation.operands
    ]
    free = [operand.type for operand, constant in zip(operation.operands, constants, strict=True) if not constant]
    with operation.context, ir.Location.unknown(), ir.InsertionPoint(module.body):
        holder = func.FuncOp("main", ([*free], [result.type for result in operation.results]))
        for name in function.attributes:  # the opset, which patterns ask for
            if name.startswith("torch."):
                holder.attributes[name] = function.attributes[name]
        block = holder.add_entry_block()
        arguments = iter(block.arguments)
        with ir.InsertionPoint(block):
            clone = operation.clone()
            for index, (operand, constant) in enumerate(zip(operation.operands, constants, strict=True)):
                if constant:
                    copy = operand.owner.clone()
                    copy.move_before(clone)
                    clone.operands[index] = copy.results[0]
                else:
                    clone.operands[index] = next(arguments)
            func.ReturnOp(list(clone.results))
    return str(module)


def _is_constant(owner: Any) -> bool:
    return owner.name == "torch.constant.none" or onnx_name(owner) == "onnx.Constant"


def _failure(text: str, context: ir.Context, *, refine: bool) -> str | None:
    """Why a module of one node cannot be converted, empty where nothing is known to do it; None where it can."""
    module = ir.Module.parse(text, context=context)
    try:
        convert_alone(module, refine=refine)
    except ConversionError as failure:
        return failure.reason
    return "" if onnx_operations(module) else None


def _describe(operation: ir.Operation) -> str:
    origin = origin_of(operation.location)
    types = ", ".join(str(operand.type).removeprefix("!torch.") for operand in operation.operands)
    place = f" at {origin.source_line}" if origin.source_line else ""
    return f"{(onnx_name(operation) or '').removeprefix('onnx.')} (node {origin.node!r}) on ({types}){place}"
