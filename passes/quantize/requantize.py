"""Keeps integers between a product and the quantization of its result.

    quantize(dequantize(sums, s), t, z)  ->  requant(sums, s / t, z)

The factor ``s / t`` becomes a multiplier of 24 bits and a shift (:func:`multiplier_of`), products are rounded to f32
and then to nearest even, as ONNX Runtime's kernels do: what the quotient in floats would round to, except within 2^-16
of a tie. Other integers than sums of products get 31 bits, rounded half to even exactly. A ReLU in between becomes a
higher minimum, a clip both bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import RequantOp
from lowerkit.dialect.reference.quantize import multiplier_of, quantize
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise, identity_map
from lowerkit.passes.quantize.parameters import Array, Scaling, constant_parameter, scaling_of, small_constant
from lowerkit.passes.raising.torch_dialect.scalars import splat
from lowerkit.passes.rewriting import (
    constant_of,
    defined_by,
    defining_op,
    element_of,
    erase_dead,
    main_block,
    operations,
    replace,
)
from lowerkit.passes.source_location import describe


@dataclass(frozen=True)
class Requantize(Pass):
    """Replaces dequantization of 32-bit sums followed by quantization with ``lk.requant``.

    Precondition: ``integer-products`` has run.

    Attributes:
        rounding: of ``lk.requant``; empty is float32 for sums of products, else half_even.
        mult_bits: of ``lk.requant``; 0 is 25 for sums of products, else 32.
    """

    name: ClassVar[str] = "requantize"
    rounding: str = ""
    mult_bits: int = 0

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name != "lk.quantize":
                continue
            source, low, high = _through_bounds(op.operands[0])
            dequantize = defined_by(source, "lk.dequantize")
            if dequantize is None or str(element_of(dequantize.operands[0])) != "i32":
                continue
            with ir.InsertionPoint(op), op.location:
                value = self._requant(op, dequantize, low, high, context)
            if value is not None:
                replace(op, [value])
                changed = True
        erase_dead(block)
        return changed

    def _requant(
        self, op: ir.Operation, dequantize: ir.Operation, low: float, high: float, context: PassContext
    ) -> ir.Value | None:
        before, after = scaling_of(dequantize, context), scaling_of(op, context)
        if before is None or after is None or not after.per_tensor or np.any(before.zero_point != 0):
            context.remark(
                self.name, f"left lk.quantize at {describe(op)} alone: parameters that are no usable constants"
            )
            return None
        product = _is_product(dequantize.operands[0])
        rounding = self.rounding or ("float32" if product and self.mult_bits != 32 else "half_even")
        bits = self.mult_bits or (25 if product else 32)
        try:
            multiplier, shift = multiplier_of(_exact(dequantize, context, before) / after.scale, bits)
        except ValueError as reason:
            context.remark(self.name, f"left lk.quantize at {describe(op)} alone: {reason}")
            return None
        point = np.full(multiplier.shape, int(after.zero_point), np.int32)
        minimum, maximum = (ir.IntegerAttr(op.attributes[name]).value for name in ("minimum", "maximum"))
        return RequantOp.build(
            dequantize.operands[0],
            constant_parameter(context, "multiplier", multiplier),
            constant_parameter(context, "shift", shift),
            constant_parameter(context, "zero_point", point),
            axis=before.axis if multiplier.ndim else 0,
            rounding=rounding,
            mult_bits=bits,
            minimum=_bound(low, op, after, minimum, maximum),
            maximum=_bound(high, op, after, minimum, maximum),
            unsigned=after.unsigned,
            storage=element_of(op.results[0]),
        )


def _is_product(value: ir.Value) -> bool:
    """Whether these are sums of a product of bytes, to which an offset may have been added."""
    op = defining_op(value)
    if op is not None and op.name == "linalg.generic":
        op = defining_op(op.operands[0])
    return op is not None and op.name in ("lk.integer_matmul", "lk.integer_conv")


def _exact(dequantize: ir.Operation, context: PassContext, scaling: Scaling) -> Array:
    """Returns the scale as it is stored, which may be finer than the f32 that a dequantization multiplies with."""
    stored = small_constant(dequantize.operands[1], context)
    return scaling.scale if stored is None else stored.astype(np.float64)


def _bound(bound: float, op: ir.Operation, scaling: Scaling, minimum: int, maximum: int) -> int:
    """Returns a bound of the floats as a bound of what is stored: the bound quantized, by the op's own formula."""
    if math.isinf(bound):
        return minimum if bound < 0 else maximum
    formula = ir.StringAttr(op.attributes["formula"]).value
    limits: dict[str, int] = {"minimum": minimum, "maximum": maximum}
    stored = quantize(np.array(bound), scaling.scale, scaling.zero_point, axis=0, formula=formula, **limits)
    return int(stored)


def _through_bounds(value: ir.Value) -> tuple[ir.Value, float, float]:
    """Looks through maxima and minima with constants; returns their source and the bounds that they set together."""
    low, high = -math.inf, math.inf
    while (found := _bounded(value)) is not None:
        value, lower, upper = found
        # What is applied last decides: the bounds before it are themselves bounded.
        low, high = min(max(lower, low), high), max(min(upper, high), low)
    return value, low, high


def _bounded(value: ir.Value) -> tuple[ir.Value, float, float] | None:
    """Looks through one elementwise region that bounds one of its inputs; returns that input and the bounds."""
    found = _term_of(value)
    return (found.value, found.low, found.high) if isinstance(found, _Bounded) and found.steps else None


@dataclass(frozen=True)
class _Bounded:
    """``min(max(value, low), high)``, made by so many steps."""

    value: ir.Value
    low: float = -math.inf
    high: float = math.inf
    steps: int = 0

    def limited(self, bound: float, *, below: bool) -> _Bounded:
        """Returns the maximum with ``bound`` (``below``) or the minimum, after what bounds it already."""
        choose = max if below else min
        return _Bounded(self.value, choose(self.low, bound), choose(self.high, bound), self.steps + 1)


@dataclass(frozen=True)
class _Compared:
    """``term > bound`` or, not ``greater``, ``term < bound``, or equal to it."""

    term: _Bounded
    bound: float
    greater: bool


_Term = _Bounded | _Compared | float
"""What an element is: a bounded element of a tensor, a comparison of one, or a number."""


def _term_of(value: ir.Value) -> _Term | None:
    """Reads an elementwise region of constants, comparisons, choices, maxima and minima."""
    generic = defined_by(value, "linalg.generic")
    view = None if generic is None else as_elementwise(generic)
    if view is None:
        return None
    terms: dict[ir.Value, _Term] = {}
    for scalar, source, index_map in zip(view.body.arguments, view.inputs, view.maps, strict=False):
        constant = constant_of(source)
        number = None if constant is None else splat(constant)
        comparison = _term_of(source) if number is None and str(element_of(source)) == "i1" else None
        if index_map != identity_map(view.rank) and number is None:
            return None
        terms[scalar] = number if number is not None else comparison or _Bounded(source)
    *body, last = operations(view.body)
    for inner in body:
        term = _term(inner, terms)
        if term is None:
            return None
        terms[inner.results[0]] = term
    return terms.get(last.operands[0])


def _term(op: ir.Operation, terms: dict[ir.Value, _Term]) -> _Term | None:
    """Reads one scalar op; None where it is another, or a bound is NaN."""
    if op.name == "arith.constant":
        return _number(op.results[0])
    given = [terms.get(operand, _number(operand)) for operand in op.operands]
    if any(isinstance(each, float) and math.isnan(each) for each in given):
        return None
    match op.name, given:
        case "arith.cmpf", [_Bounded() as term, float(bound)]:
            greater = _IS_GREATER.get(ir.IntegerAttr(op.attributes["predicate"]).value)
            return None if greater is None else _Compared(term, bound, greater)
        case "arith.select", [_Compared(term, bound, greater), first, second]:
            if {first, second} != {term, bound}:
                return None
            return term.limited(bound, below=greater == (first == term))
        case ("arith.maximumf" | "arith.maxnumf" | "arith.minimumf" | "arith.minnumf") as name, [
            (_Bounded() as term, float(bound)) | (float(bound), _Bounded() as term)
        ]:
            return term.limited(bound, below=name.startswith("arith.max"))
        case _:
            return None


_IS_GREATER = {2: True, 3: True, 9: True, 10: True, 4: False, 5: False, 11: False, 12: False}
"""Of each predicate of ``arith.cmpf`` that orders: whether it asks for greater, equal or unordered or not."""


def _number(value: ir.Value) -> float | None:
    attribute = constant_of(value)
    return ir.FloatAttr(attribute).value if attribute is not None and isinstance(attribute, ir.FloatAttr) else None
