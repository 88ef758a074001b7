"""Keeps integer division from trapping: processors raise SIGFPE for a divisor of 0, and for the smallest number by -1.

Both may come out of data, and the first also out of the unused lanes of a vector at the edge of a tensor. Division is
guarded where a kernel becomes LLVM IR, so it holds for every family:

    x / 0 is 0 and x % 0 is x (eager PyTorch raises an error, which compiled code has no way to do);
    x / -1 is -x, wrapped around; x % -1 is 0.

Constant divisors other than 0 and -1, and arithmetic on ``index`` (loop bounds and positions), stay as they are.
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk

_SIGNED = frozenset({"arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi"})
_UNSIGNED = frozenset({"arith.divui", "arith.remui", "arith.ceildivui"})
_REMAINDERS = frozenset({"arith.remsi", "arith.remui"})
_EQUAL = 0  # arith.cmpi's predicate eq


def guard_divisions(module: ir.Module) -> bool:
    """Rewrites each integer division or remainder whose divisor may trap; returns whether there was one."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name in _SIGNED | _UNSIGNED and "index" not in str(op.results[0].type) and _may_trap(op.operands[1]):
            found.append(op)

    walk(module.operation, collect)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            _guard(op)
    return bool(found)


def _may_trap(divisor: ir.Value) -> bool:
    owner = divisor.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return True
    attribute = owner.operation.attributes["value"]
    numbers = [attribute.value] if isinstance(attribute, ir.IntegerAttr) else list(ir.DenseIntElementsAttr(attribute))
    return not {0, -1}.isdisjoint(numbers)


def _guard(op: ir.Operation) -> None:
    dividend, divisor = op.operands
    signed, remainder = op.name in _SIGNED, op.name in _REMAINDERS
    zero, one = _splat(0, divisor.type), _splat(1, divisor.type)
    is_zero = _equal(divisor, zero)
    is_minus_one = _equal(divisor, _splat(-1, divisor.type)) if signed else None
    safe = _select(is_zero, one, divisor)
    if is_minus_one is not None:
        safe = _select(is_minus_one, one, safe)
    # A new op: the old one's uses go to what is computed from it.
    value = ir.Operation.create(op.name, results=[divisor.type], operands=[dividend, safe]).results[0]
    if is_minus_one is not None and not remainder:  # a remainder by 1 is 0, as it is by -1
        negated = ir.Operation.create("arith.subi", results=[divisor.type], operands=[zero, dividend]).results[0]
        value = _select(is_minus_one, negated, value)
    value = _select(is_zero, dividend if remainder else zero, value)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _splat(number: int, kind: ir.Type) -> ir.Value:
    if isinstance(kind, ir.VectorType):
        element = ir.IntegerAttr.get(kind.element_type, number)
        attribute: ir.Attribute = ir.DenseElementsAttr.get_splat(kind, element)
    else:
        attribute = ir.IntegerAttr.get(kind, number)
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": attribute}).results[0]


def _equal(one: ir.Value, other: ir.Value) -> ir.Value:
    bit = ir.IntegerType.get_signless(1)
    kind = ir.VectorType.get(one.type.shape, bit) if isinstance(one.type, ir.VectorType) else bit
    predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _EQUAL)}
    return ir.Operation.create("arith.cmpi", results=[kind], operands=[one, other], attributes=predicate).results[0]


def _select(condition: ir.Value, one: ir.Value, other: ir.Value) -> ir.Value:
    return ir.Operation.create("arith.select", results=[one.type], operands=[condition, one, other]).results[0]
