"""Emits the scalar body of a ``linalg.generic`` on vectors of any width: the epilogue of every kernel family.

Steps: :class:`VectorBody` reads the body once and checks every op, so that a family can refuse before it has written
anything; :meth:`VectorBody.emit` then writes the ops for given operand values, as often as a kernel needs them.

Rounding follows the IR: an op on f16 or bf16 computes in f32 and rounds its result once, as eager does op by op.
Nothing is contracted, reassociated or approximated beyond the ULP errors of ``math.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value, vector_type
from lowerkit.targets.cpu.vector import math as vector_math
from lowerkit.targets.cpu.vector.blocks import AVX512_LANES
from lowerkit.targets.cpu.vector.late_rounding import LateRounding
from lowerkit.targets.cpu.vector.remainder import remainder

__all__ = ["VectorBody"]

_ELEMENTS = ("f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "i1")
# Ops of n operands of one type and a result of that type.
_SAME_TYPE = {
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.maximumf", "arith.minimumf",
    "arith.maxnumf", "arith.minnumf", "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.divui",
    "arith.remsi", "arith.remui", "arith.floordivsi", "arith.ceildivsi", "arith.andi", "arith.ori", "arith.xori",
    "arith.shli", "arith.shrsi", "arith.shrui", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui",
    "math.absf", "math.absi", "math.ceil", "math.floor", "math.trunc", "math.round", "math.roundeven", "math.sqrt",
    "math.copysign", "math.fma",
}  # fmt: skip
_CASTS = {"arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp",
          "arith.fptosi", "arith.fptoui", "arith.bitcast"}  # fmt: skip
_SPECIAL = {"arith.constant", "arith.cmpf", "arith.cmpi", "arith.select", "arith.index_cast", "math.powf", "math.fpowi",
            "arith.remf", "linalg.index", "linalg.yield"}  # fmt: skip
_CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno",
         "true")  # fmt: skip
_REGISTER = vector_type("f32", AVX512_LANES)
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def _element(type_: ir.Type) -> str:
    """Element name of a scalar type; ``index`` computes as i64."""
    text = str(type_)
    return "i64" if text == "index" else text


class VectorBody:
    """The body of one ``linalg.generic``.

    Attributes:
        unsupported: why the body cannot be emitted, in words for the ledger; None when it can.
        inputs: element of each block argument, inputs then outputs.
        outputs: element of each yielded value.
        op_count: how many arithmetic ops the body has, transcendental ones counted as 20.
        uses_index: True when the body reads ``linalg.index``.
    """

    def __init__(self, generic: Any) -> None:
        block = generic.operation.regions[0].blocks[0]
        self._block = block
        self.inputs = [_element(argument.type) for argument in block.arguments]
        self._operations = [op.operation for op in block.operations]
        self.outputs = [_element(value.type) for value in self._operations[-1].operands]
        self.unsupported = self._check()
        self.op_count = sum(
            20 if op.name in vector_math.FUNCTIONS or op.name in ("math.powf", "arith.remf") else 1
            for op in self._operations
            if op.name not in ("arith.constant", "linalg.yield")
        )
        self.uses_index = any(op.name == "linalg.index" for op in self._operations)

    def uses_argument(self, number: int) -> bool:
        """True when block argument ``number`` is read."""
        return bool(list(self._block.arguments[number].uses))

    def _check(self) -> str | None:
        for op in self._operations:
            types = [*(value.type for value in op.operands), *(value.type for value in op.results)]
            for type_ in types:
                if _element(type_) not in _ELEMENTS:
                    return f"{op.name} on {type_} has no vector form"
            if op.name in vector_math.FUNCTIONS or op.name == "math.powf":
                if "f64" in {_element(type_) for type_ in types} and op.name != "math.sqrt":
                    return f"{op.name} on f64 has no vector form"
            elif op.name == "arith.remf" and _element(op.results[0].type) == "f64":
                return "arith.remf on f64 has no vector form"
            elif op.name not in _SAME_TYPE | _CASTS | _SPECIAL:
                return f"{op.name} has no vector form"
            if op.name == "math.fpowi" and _constant_of(op.operands[1]) is None:
                return "math.fpowi with an exponent that is not constant has no vector form"
            for value in op.operands:
                if self._is_captured(value) and _constant_of(value) is None:
                    return f"{op.name} uses a value from outside the body that is not a constant"
        return None

    def _is_captured(self, value: ir.Value) -> bool:
        owner = value.owner
        return owner != self._block if isinstance(owner, ir.Block) else owner.operation.block != self._block

    def emit(
        self,
        b: TextBuilder,
        values: Sequence[Value | None],
        index: Callable[[int], Value] | None = None,
        *,
        lanes: int = 1,
    ) -> list[Value]:
        """Writes the body for one vector (or scalar) of points and returns the yielded values.

        Args:
            b: where the ops go.
            values: one value per block argument, of the argument's element and all of one width; arguments that the
                body does not read may be None. ``i1`` arguments are ``i1``, not bytes.
            index: gives the coordinates of the points along one iteration dimension, as ``i64`` lanes; needed when
                :attr:`uses_index`.
            lanes: the width of a body that reads no argument.
        """
        assert self.unsupported is None, self.unsupported
        lanes = next((value.lanes for value in values if value is not None), lanes)
        known: dict[Any, Value] = {}
        for argument, value in zip(self._block.arguments, values, strict=True):
            if value is not None:
                assert value.type == vector_type(_element(argument.type), lanes), (value.type, argument.type)
                known[argument] = value

        def operand(value: ir.Value) -> Value:
            if value not in known:
                constant = _constant_of(value)
                assert constant is not None, f"the body reads {value}, which was not given"
                known[value] = b.constant(constant, _element(value.type), lanes)
            return known[value]

        late = LateRounding(b)
        for op in self._operations[:-1]:
            if op.name == "arith.constant":
                continue
            if op.name == "linalg.index":
                assert index is not None, "the body reads linalg.index and no coordinates were given"
                result = index(ir.IntegerAttr(op.attributes["dim"]).value)
            elif op.name == "math.fpowi":
                exponent = _constant_of(op.operands[1])
                assert exponent is not None
                result = _power_by_squaring(b, operand(op.operands[0]), int(exponent))
            elif op.name == "math.powf" and (exponent := _constant_of(op.operands[1])) in (2.0, 3.0, -1.0, 0.5, 1.0):
                result = _constant_power(b, operand(op.operands[0]), float(exponent or 0))
            else:
                operands = [operand(value) for value in op.operands]
                if op.name == "math.exp" and operands[0].type == _REGISTER and _ends_in_bf16(op.results[0]):
                    result = vector_math.exp_for_bf16(b, operands[0])
                else:
                    result = _emit_op(b, op, operands, late)
                if op.name == "arith.cmpf":
                    late.compared(op, operands, result, _constant_of(op.operands[1]))
                elif op.name == "arith.select":
                    late.selected(operands, result)
            known[op.results[0]] = result
        return [late.final(operand(value)) for value in self._operations[-1].operands]


def _ends_in_bf16(value: ir.Value) -> bool:
    """Whether an exponential is rounded to bf16 in the end, and its relative error does not grow on the way.

    It keeps its size in products and quotients, and shrinks where a positive number is added to the exponential.
    """
    uses = list(value.uses)
    for use in uses:
        op = use.owner.operation
        if op.name == "arith.truncf" and _element(op.results[0].type) == "bf16":
            continue
        if op.name == "arith.addf":
            others = [_constant_of(operand) for operand in op.operands if operand != value]
            owner = value.owner
            is_exp = not isinstance(owner, ir.Block) and owner.operation.name == "math.exp"
            if not is_exp or len(others) != 1 or others[0] is None or others[0] < 0:
                return False
        elif op.name not in ("arith.mulf", "arith.divf"):
            return False
        if not _ends_in_bf16(op.results[0]):
            return False
    return bool(uses)


def _constant_of(value: ir.Value) -> float | int | None:
    """The number that an ``arith.constant`` gives, else None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    attribute = owner.operation.attributes["value"]
    if isinstance(attribute, ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.BoolAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    return None


def _emit_op(b: TextBuilder, op: ir.Operation, operands: list[Value], late: LateRounding) -> Value:
    name = op.name
    element = _element(op.results[0].type)
    first = operands[0]
    if name in ("arith.cmpf", "arith.cmpi"):
        code = ir.IntegerAttr(op.attributes["predicate"]).value
        if name == "arith.cmpf":
            operands = [b.widen(value) if value.element in ("f16", "bf16") else value for value in operands]
            return b.compare(_CMPF[code], *operands)
        return b.compare(_CMPI[code], *operands)
    if name == "arith.select":
        return b.select(*operands)
    if name == "arith.index_cast":
        if first.element == element:
            return first
        wider = _bits(element) > _bits(first.element)
        return b.cast("arith.extsi" if wider else "arith.trunci", first, element)
    if name in _CASTS:
        return _cast(b, name, first, element, late)
    narrow = element in ("f16", "bf16")
    if narrow:
        operands = [b.widen(value) for value in operands]
    if name in vector_math.FUNCTIONS:
        result = b.unary(name, operands[0]) if name == "math.sqrt" else vector_math.FUNCTIONS[name](b, operands[0])
    elif name == "math.powf":
        result = vector_math.power(b, *operands)
    elif name == "arith.remf":
        result = remainder(b, *operands)
    else:
        result = b.op(f"{name} {', '.join(map(str, operands))} : {operands[0].type}", operands[0].type)
    return late.narrowed(result, element) if narrow else result


def _bits(element: str) -> int:
    return int(re.sub(r"\D", "", element))


def _cast(b: TextBuilder, name: str, value: Value, element: str, late: LateRounding) -> Value:
    """Conversions; those from or to the narrow floats go through f32, where they are exact or rounded once."""
    if name == "arith.truncf":
        if element == "bf16" and value.element == "f64":
            # f64 -> f32 -> bf16 rounds twice, as eager's own conversion does.
            value = b.narrow(value, "f32")
        return late.narrowed(value, element)
    if name == "arith.extf":
        # Shown the conversions, LLVM computes a quotient of an f16 and a bf16 in f16, beyond whose range a bf16 may be.
        return late.widened(value, element)
    if name in ("arith.sitofp", "arith.uitofp") and element in ("f16", "bf16"):
        return b.narrow(b.cast(name, value, "f32"), element)
    if name in ("arith.fptosi", "arith.fptoui") and value.element in ("f16", "bf16"):
        value = b.widen(value)
    return b.cast(name, value, element)


def _power_by_squaring(b: TextBuilder, base: Value, exponent: int) -> Value:
    """base^exponent for a small integer exponent."""
    narrow = base.element if base.element in ("f16", "bf16") else None
    x = b.widen(base) if narrow else base
    result: Value | None = None
    square, left = x, abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else b.mul(result, square)
        left >>= 1
        if left:
            square = b.mul(square, square)
    one = b.like(1.0, x)
    value = one if result is None else (b.div(one, result) if exponent < 0 else result)
    return b.narrow(value, narrow) if narrow else value


def _constant_power(b: TextBuilder, base: Value, exponent: float) -> Value:
    """The exponents that eager computes by multiplication, division or a square root."""
    if exponent != 0.5:
        return _power_by_squaring(b, base, int(exponent))
    x = b.widen(base) if base.element in ("f16", "bf16") else base
    # pow(-inf, 0.5) is +inf and pow(-0, 0.5) is +0, unlike sqrt.
    root = b.unary("math.absf", b.unary("math.sqrt", x))
    infinite = b.compare("oeq", x, b.like(float("-inf"), x))
    return b.narrow(b.select(infinite, b.like(float("inf"), x), root), base.element)
