"""Converts floats to integers as PyTorch's conversions do on x86, whatever the numbers.

    beyond i32 or i64, infinite or NaN    the smallest integer of that type
    to 8 and 16 bits                      through 32 bits, of which the low ones are kept: 300 as a byte is 44, NaN is 0

LLVM takes a number beyond the type for undefined. The instruction gives the smallest integer, but of a constant, and of
a choice between one and a number (``select(at_pole, -inf, x)``), LLVM makes what it likes; vectors saturate at one
width or another. So numbers beyond are set aside, unless bounds that are constant keep them away (quantization).

Vocabulary
    bounds    the least and the greatest number that a value can be; NaN apart
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lowerkit.mlir import ir, walk

_CONVERSIONS = frozenset({"arith.fptosi", "arith.fptoui"})
_NARROW = ("i8", "i16")
_ORDERED_LESS = 4  # arith.cmpf's predicate olt
_LESS, _GREATER = frozenset({4, 5}), frozenset({2, 3})  # olt and ole, ogt and oge
_ROUNDINGS: dict[str, Callable[[float], float]] = {
    "math.roundeven": math.ceil,
    "math.round": math.ceil,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "arith.extf": float,
}
_ANYTHING = (-math.inf, math.inf)


def convert_as_x86(module: ir.Module) -> bool:
    """Rewrites conversions of floats to integers, of scalars and vectors; returns whether there was one."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name in _CONVERSIONS:
            found.append(op)

    walk(module.operation, collect)
    rewritten = [op for op in found if _rewrite(op)]
    return bool(rewritten)


def _rewrite(op: ir.Operation) -> bool:
    kind, value = op.results[0].type, op.operands[0]
    narrow = str(_element(kind)) in _NARROW
    limit = 2.0 ** ((32 if narrow else _element(kind).width) - 1)
    low, high = _bounds(value)
    beyond = not (-limit <= low and high < limit)
    if not narrow and (op.name == "arith.fptoui" or not beyond):
        return False
    with ir.InsertionPoint(op), op.location:
        wide = _like(kind, ir.IntegerType.get_signless(32)) if narrow else kind
        result = _guarded(value, wide, limit) if beyond else _made("arith.fptosi", wide, value)
        if narrow:
            result = _made("arith.trunci", kind, result)
    op.results[0].replace_all_uses_with(result)
    op.erase()
    return True


def _guarded(value: ir.Value, kind: ir.Type, limit: float) -> ir.Value:
    element = _element(value.type)
    bit = _like(kind, ir.IntegerType.get_signless(1))
    predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ORDERED_LESS)}
    # An f16 has no such number: the limit is infinite, and all below it fit.
    most = _splat(ir.FloatAttr.get(element, limit), value.type)
    size = _made("math.absf", value.type, value)
    fits = ir.Operation.create("arith.cmpf", results=[bit], operands=[size, most], attributes=predicate).results[0]
    zero = _splat(ir.FloatAttr.get(element, 0.0), value.type)
    whole = _made("arith.fptosi", kind, _made("arith.select", value.type, fits, value, zero))
    smallest = _splat(ir.IntegerAttr.get(_element(kind), -int(limit)), kind)
    return _made("arith.select", kind, fits, whole, smallest)


def _bounds(value: ir.Value) -> tuple[float, float]:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _ANYTHING
    op = owner.operation
    if op.name == "arith.constant":
        number = _number(op.attributes["value"])
        return _ANYTHING if number is None or math.isnan(number) else (number, number)
    if op.name in _ROUNDINGS:
        low, high = _bounds(op.operands[0])
        if math.isinf(low) or math.isinf(high):
            return _ANYTHING
        return math.floor(low), _ROUNDINGS[op.name](high)
    if op.name in ("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.minnumf"):
        (low, high), (other_low, other_high) = map(_bounds, op.operands)
        choose = max if "max" in op.name else min
        return choose(low, other_low), choose(high, other_high)
    if op.name == "arith.select":
        return _bounds_of_choice(*op.operands)
    return _ANYTHING


def _bounds_of_choice(condition: ir.Value, one: ir.Value, other: ir.Value) -> tuple[float, float]:
    (low, high), (other_low, other_high) = _bounds(one), _bounds(other)
    owner = condition.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "arith.cmpf":
        # The value only where it is within the other one, and that in its place.
        predicate = ir.IntegerAttr(owner.operation.attributes["predicate"]).value
        if list(owner.operation.operands) == [one, other]:
            if predicate in _GREATER:
                low = max(low, other_low)
            elif predicate in _LESS:
                high = min(high, other_high)
    return min(low, other_low), max(high, other_high)


def _number(attribute: ir.Attribute) -> float | None:
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    return attribute.value if isinstance(attribute, ir.FloatAttr) else None


def _made(name: str, kind: ir.Type, *operands: ir.Value) -> ir.Value:
    return ir.Operation.create(name, results=[kind], operands=list(operands)).results[0]


def _splat(attribute: ir.Attribute, kind: ir.Type) -> ir.Value:
    if isinstance(kind, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(kind, attribute)
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": attribute}).results[0]


def _like(kind: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType.get(kind.shape, element) if isinstance(kind, ir.VectorType) else element


def _element(kind: ir.Type) -> ir.Type:
    return kind.element_type if isinstance(kind, ir.VectorType) else kind
