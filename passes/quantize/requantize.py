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
    generic = defined_by(value, "linalg.generic")
    view = None if generic is None else as_elementwise(generic)
    if view is None or len(view.inputs) != 1 or view.maps[0] != identity_map(view.rank):
        return None
    *body, last = operations(view.body)
    current = view.body.arguments[0]
    low, high = -math.inf, math.inf
    compared: tuple[str, float] | None = None
    for inner in body:
        if inner.name == "arith.constant":
            continue
        if inner.name == "arith.cmpf" and inner.operands[0] == current:
            number = _number(inner.operands[1])
            predicate = ir.IntegerAttr(inner.attributes["predicate"]).value
            kind = {2: "gt", 3: "gt", 9: "gt", 10: "gt", 4: "lt", 5: "lt", 11: "lt", 12: "lt"}.get(predicate)
            if number is None or kind is None or compared is not None:
                return None
            compared = (kind, number)
            continue
        if inner.name == "arith.select" and compared is not None:
            kind, bound = compared
            first, second = inner.operands[1], inner.operands[2]
            kept, other = (first, second) if first == current else (second, first)
            if kept != current or _number(other) != bound:
                return None
            is_maximum = (kind == "gt") == (first == current)
            compared = None
        elif inner.name in ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"):
            operands = list(inner.operands)
            others = [operand for operand in operands if operand != current]
            number = _number(others[0]) if len(others) == 1 else None
            if number is None:
                return None
            bound, is_maximum = number, inner.name.startswith("arith.max")
        else:
            return None
        if is_maximum:
            low, high = max(low, bound), max(high, bound)
        else:
            low, high = min(low, bound), min(high, bound)
        current = inner.results[0]
    if last.operands[0] != current or not body:
        return None
    return view.inputs[0], low, high


def _number(value: ir.Value) -> float | None:
    attribute = constant_of(value)
    return ir.FloatAttr(attribute).value if attribute is not None and isinstance(attribute, ir.FloatAttr) else None
