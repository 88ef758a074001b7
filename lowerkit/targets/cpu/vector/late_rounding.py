"""A value that is rounded to bf16 or f16, clamped and rounded again is clamped first and rounded once.

Activations such as ReLU follow ops whose results are rounded: ``round(min(max(round(x), a), b))``. Rounding to nearest
is monotone and leaves numbers of the narrow type as they are, so where a and b are such numbers this equals
``round(min(max(x, a), b))``: NaN stays NaN, and only a zero may have the other sign (a negative x that rounds to -0 is
clamped to +0). It saves a conversion down and up for each register, of which epilogues consist where the depth is
short.

Ops are followed while they are written. What has become superfluous is left for LLVM to remove.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value

__all__ = ["LateRounding"]

_NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_CLAMPS = {2: "ogt", 3: "oge", 4: "olt", 5: "ole"}  # by the number of arith.cmpf's predicate


class LateRounding:
    """Follows the ops of one body.

    Args:
        b: where the ops go.
    """

    def __init__(self, b: TextBuilder) -> None:
        self._b = b
        # For a value, f32 or narrow: what it was before it was rounded, and the type to which.
        self._unrounded: dict[Value, tuple[Value, str]] = {}
        self._comparisons: dict[Value, tuple[str, Value, Value, float]] = {}
        self._clamped: set[Value] = set()

    def narrowed(self, wide: Value, element: str) -> Value:
        """Returns an f32 rounded to ``element``; a clamped one by way of what it was before its earlier rounding."""
        before = self._unrounded.get(wide)
        if wide in self._clamped and before is not None and before[1] == element:
            wide = before[0]
        result = self._b.narrow(wide, element)
        if wide.element == "f32" and element in _NARROW:
            self._unrounded[result] = (wide, element)
        return result

    def widened(self, narrow: Value, element: str) -> Value:
        """Returns a narrow value as ``element``."""
        result = self._b.widen(narrow, element)
        if narrow in self._unrounded and element == "f32":
            self._unrounded[result] = self._unrounded[narrow]
        return result

    def compared(self, op: ir.Operation, operands: list[Value], result: Value, constant: float | int | None) -> None:
        """``result`` is a comparison of the first operand with the second, which may be a ``constant``."""
        if self._b.invariant:
            return  # whether a value is rounded and clamped in one body would show in the sign of a zero
        predicate = _CLAMPS.get(ir.IntegerAttr(op.attributes["predicate"]).value)
        if predicate is not None and constant is not None and operands[0] in self._unrounded:
            self._comparisons[result] = (predicate, operands[0], operands[1], float(constant))

    def selected(self, operands: list[Value], result: Value) -> None:
        """``result`` is the second operand where the first one holds, else the third."""
        condition, chosen, other = operands
        if condition not in self._comparisons:
            return
        predicate, value, bound, number = self._comparisons[condition]
        wide, element = self._unrounded[value]
        if (chosen, other) != (bound, value) or float(np.float64(number).astype(_NARROW[element])) != number:
            return
        limit = self._b.like(number, wide)
        clamped = self._b.select(self._b.compare(predicate, wide, limit), limit, wide)
        self._unrounded[result] = (clamped, element)
        self._clamped.add(result)

    def final(self, value: Value) -> Value:
        """Returns a yielded value; a clamped narrow one is rounded once."""
        if value in self._clamped and value.element in _NARROW:
            wide, element = self._unrounded[value]
            return self._b.narrow(wide, element)
        return value
