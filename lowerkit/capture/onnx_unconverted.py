"""Which ONNX nodes torch-mlir's conversion does not take: it stops at the first, so each op is tried alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lowerkit.capture.locations import origin_of
from lowerkit.errors import CaptureError, UnsupportedError
from lowerkit.mlir import func, ir, run_pipeline, walk

CONVERT = "func.func(convert-torch-onnx-to-torch)"
"""The pass that turns ``torch.operator "onnx.*"`` into ATen ops."""


class UnconvertedError(UnsupportedError):
    """Nodes of the standard for which torch-mlir has no conversion; ``op_types`` are their types."""

    def __init__(self, operations: Sequence[ir.Operation]) -> None:
        super().__init__(
            "LK4001",
            f"{len(operations)} ONNX nodes are not supported",
            details=[_describe(operation) for operation in operations],
        )
        self.op_types = {(onnx_name(operation) or "").removeprefix("onnx.") for operation in operations}


def onnx_name(operation: ir.Operation) -> str | None:
    """Returns ``onnx.<op>`` for an op that stands for an ONNX node, None for others."""
    if operation.name != "torch.operator":
        return None
    name = ir.StringAttr(operation.attributes["name"]).value
    return name if name.startswith("onnx.") else None


def raise_unconverted(text: str, context: ir.Context, error: ir.MLIRError) -> NoReturn:
    """Tries each op of the unconverted module alone and raises with those that fail.

    Raises:
        UnconvertedError: LK4001, with every node that has no conversion.
        CaptureError: LK2003, an output is declared as another type than what is computed; LK2001, none fails alone.
    """
    try:
        module = ir.Module.parse(text, context=context)
    except ir.MLIRError as invalid:
        details = [line.strip() for line in str(invalid).splitlines()[1:2]]
        raise CaptureError(
            "LK2003", "the ONNX model contradicts itself", details=details, hint="export it again"
        ) from error
    failing: list[ir.Operation] = []
    known: dict[str, bool] = {}
    for operation in list(module.body.operations[0].regions[0].blocks[0].operations):
        name = onnx_name(operation.operation)
        if name is None or name == "onnx.Constant":
            continue
        text = _alone(operation.operation)
        if text not in known:
            known[text] = _converts(text, module.context)
        if not known[text]:
            failing.append(operation.operation)
    if failing:
        raise UnconvertedError(failing) from error
    first = next(iter(str(error).splitlines()), "")
    raise CaptureError("LK2001", f"the ONNX graph could not be converted: {first}") from error


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


def _converts(text: str, context: ir.Context) -> bool:
    module = ir.Module.parse(text, context=context)
    try:
        run_pipeline(module, f"builtin.module({CONVERT})")
    except ir.MLIRError:
        return False
    left: list[ir.Operation] = []
    walk(module.operation, lambda op: left.append(op) if onnx_name(op) else None)
    return not left


def _describe(operation: ir.Operation) -> str:
    origin = origin_of(operation.location)
    types = ", ".join(str(operand.type).removeprefix("!torch.") for operand in operation.operands)
    place = f" at {origin.source_line}" if origin.source_line else ""
    return f"{(onnx_name(operation) or '').removeprefix('onnx.')} (node {origin.node!r}) on ({types}){place}"
