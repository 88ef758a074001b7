"""Hides constant tensors of the torch dialect from torch-mlir, whose folding of them is wrong.

It computes with the bits of a number for the number: a tensor of zeros below 1 is false, zeros plus -2 are 1.8e19, an
infinity ends the process. So ``full`` and its kind of static shape, and literals of one value, become filled
builtin tensors before its passes run; what is computed of them alone is folded by ``fold-constants``.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowerkit.mlir import arith, ir, linalg, tensor
from lowerkit.passes.raising.torch_dialect.torch_ir import from_builtin, tensor_info, try_number
from lowerkit.passes.rewriting import replace

_FILLS = {
    **dict.fromkeys(("torch.aten.zeros", "torch.aten.zeros_like", "torch.aten.new_zeros"), 0),
    **dict.fromkeys(("torch.aten.ones", "torch.aten.ones_like", "torch.aten.new_ones"), 1),
}
"""The number that each is full of."""

_NUMBERS = {
    **dict.fromkeys(("torch.aten.full", "torch.aten.full_like"), 1),
    "torch.aten.new_full": 2,
    **dict.fromkeys(("torch.prim.NumToTensor.Scalar", "torch.aten.scalar_tensor"), 0),
    **dict.fromkeys(("torch.aten.tensor.int", "torch.aten.tensor.float"), 0),
}
"""The operand that holds it."""


def hide_constants(torch_ops: Iterable[ir.Operation]) -> None:
    """Replaces the ops among ``torch_ops`` that make a tensor of one known number."""
    for op in torch_ops:
        number = _number(op)
        if number is None:
            continue
        info = tensor_info(op.results[0])
        if None in info.shape:
            continue  # it cannot be folded
        with op.context, ir.InsertionPoint(op), op.location:
            kind = info.builtin_type()
            value = arith.ConstantOp(kind.element_type, _attribute(number, kind.element_type)).result
            empty = tensor.EmptyOp(kind.shape, kind.element_type).result
            # A constant tensor would be folded through the cast; a filled one is not.
            fill = linalg.FillOp([kind], [value], [empty])
            linalg.fill_builtin_region(fill.operation)
            replace(op, [from_builtin(fill.results[0], info)])


def _number(op: ir.Operation) -> float | int | None:
    if op.name in _FILLS:
        return _FILLS[op.name]
    if op.name in _NUMBERS:
        return try_number(op.operands[_NUMBERS[op.name]])
    if op.name == "torch.vtensor.literal":
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
            value = attribute.get_splat_value()
            return value.value if isinstance(value, (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr)) else None
    return None


def _attribute(number: float | int, element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType):
        if element.width == 1:
            return ir.IntegerAttr.get(element, int(bool(number)))
        half = 1 << (element.width - 1)
        return ir.IntegerAttr.get(element, (int(number) + half) % (2 * half) - half)
    return ir.FloatAttr.get(element, float(number))
