"""Takes float64 out of computations with Python scalars.

Python scalars are float64 in the torch dialect. PyTorch rounds them to the type of the computation first; upstream's
folder refuses to round, so that the truncation of 0.1 would stay in every loop body, and torch-mlir widens a tensor to
float64 to compare it with a scalar.
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk

_CONVERSIONS = frozenset({"arith.truncf", "arith.extf", "arith.sitofp", "arith.uitofp", "arith.fptosi"})


def fold_scalar_conversions(module: ir.Module) -> bool:
    """Folds until nothing changes (an integer constant may become a float64 that becomes an f32)."""
    changed = False
    while _fold_once(module):
        changed = True
    return changed


def narrow_comparisons(module: ir.Module) -> bool:
    """Compares ``x`` with a constant in the type of x, not in float64.

    PyTorch rounds the Python number to the type of the tensor and compares there.
    """
    found: list[tuple[ir.Operation, int]] = []

    def collect(op: ir.Operation) -> None:
        if op.name != "arith.cmpf" or not isinstance(op.operands[0].type, ir.F64Type):
            return
        for index in (0, 1):
            widened, constant = op.operands[index].owner, op.operands[1 - index].owner
            if isinstance(widened, ir.Block) or isinstance(constant, ir.Block):
                continue
            if widened.operation.name == "arith.extf" and constant.operation.name == "arith.constant":
                found.append((op, index))
                return

    walk(module.operation, collect)
    for op, index in found:
        value = op.operands[index].owner.operation.operands[0]
        number = ir.FloatAttr(op.operands[1 - index].owner.operation.attributes["value"]).value
        with ir.InsertionPoint(op), op.location:
            attribute = ir.FloatAttr.get(value.type, number)
            constant = ir.Operation.create("arith.constant", results=[value.type], attributes={"value": attribute})
        op.operands[index] = value
        op.operands[1 - index] = constant.results[0]
    return bool(found)


def _fold_once(module: ir.Module) -> bool:
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name in _CONVERSIONS and _constant_of(op) is not None:
            found.append(op)

    walk(module.operation, collect)
    for op in found:
        number = _constant_of(op)
        assert number is not None, "collected for having a constant operand"
        kind = op.results[0].type
        attribute: ir.Attribute
        if isinstance(kind, ir.IntegerType):
            attribute = ir.IntegerAttr.get(kind, int(number))
        else:
            with op.location:
                attribute = ir.FloatAttr.get(kind, float(number))
        with ir.InsertionPoint(op), op.location:
            constant = ir.Operation.create("arith.constant", results=[kind], attributes={"value": attribute})
        op.results[0].replace_all_uses_with(constant.results[0])
        op.erase()
    return bool(found)


def _constant_of(op: ir.Operation) -> float | int | None:
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    attribute = owner.operation.attributes["value"]
    if isinstance(attribute, ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.IntegerAttr):
        if op.name == "arith.uitofp" and attribute.value < 0:
            return attribute.value + (1 << ir.IntegerType(attribute.type).width)
        return attribute.value
    return None
