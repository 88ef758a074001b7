"""Recognizes GELU that a model spells out, exact (error function) or approximate (hyperbolic tangent).

Formulas (Hendrycks and Gimpel 2016), in any order and grouping of the factors::

    x * 0.5 * (1 + erf(x / sqrt(2)))
    x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))
    x * 0.5 * (1 + tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x^2)))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.matching import Reader, close, recognize
from lowerkit.passes.raising.torch_dialect.torch_ir import build, constant_string, defining_op, tensor_info

_CUBIC_COEFFICIENT = 0.044715
_ROOTS = ("torch.aten.mul.Tensor", "torch.aten.mul.Scalar", "torch.aten.div.Tensor", "torch.aten.div.Scalar")


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    info = tensor_info(op.results[0])
    if not info.is_float:
        return None
    product = reader.product(op.results[0])
    if len(product.factors) != 2:
        return None
    for value, gate in (product.factors, product.factors[::-1]):
        if tensor_info(value) != info:
            continue
        kind = _gate_kind(value, gate, product.coefficient, reader)
        if kind is not None:
            return build("torch.aten.gelu", [value, constant_string(kind)], [op.results[0].type])[0]
    return None


def _gate_kind(value: ir.Value, gate: ir.Value, coefficient: float, reader: Reader) -> str | None:
    """Returns "none" or "tanh" where ``coefficient * gate`` is ``0.5 * (1 + f(value))`` of one of the formulas."""
    dtype = tensor_info(value).dtype
    found = reader.plus_scalar(gate)
    if found is None:
        return None
    term, constant = found
    # 0.5 may stand outside, or inside as 0.5 + 0.5 * f.
    curve = reader.product(term)
    if not close(constant * coefficient, 0.5, dtype) or not close(curve.coefficient * coefficient, 0.5, dtype):
        return None
    if len(curve.factors) != 1:
        return None
    function = defining_op(curve.factors[0], "torch.aten.erf", "torch.aten.tanh")
    if function is None:
        return None
    if function.name == "torch.aten.erf":
        argument = reader.product(function.operands[0])
        exact = argument.is_power_of(value, 1) and close(argument.coefficient, math.sqrt(0.5), dtype)
        return "none" if exact else None
    return "tanh" if _is_tanh_argument(function.operands[0], value, dtype, reader) else None


def _is_tanh_argument(argument: ir.Value, value: ir.Value, dtype: str, reader: Reader) -> bool:
    product = reader.product(argument)
    if not close(product.coefficient, math.sqrt(2 / math.pi), dtype):
        return False
    if len(product.factors) == 1:  # x + c * x^3
        terms = reader.sum_terms(product.factors[0])
        if terms is None or len(terms[0]) != 2 or value not in terms[0]:
            return False
        cube = reader.product(terms[0][1] if terms[0][0] == value else terms[0][0])
        return cube.is_power_of(value, 3) and close(cube.coefficient, _CUBIC_COEFFICIENT, dtype)
    rest = product.without(value)  # x * (1 + c * x^2)
    if rest is None or len(rest.factors) != 1:
        return False
    found = reader.plus_scalar(rest.factors[0])
    if found is None or not close(found[1], 1.0, dtype):
        return False
    square = reader.product(found[0])
    return square.is_power_of(value, 2) and close(square.coefficient, _CUBIC_COEFFICIENT, dtype)


@dataclass(frozen=True)
class RecognizeGelu(Pass):
    """Turns a spelled-out GELU into ``torch.aten.gelu``. Precondition: none."""

    name: ClassVar[str] = "recognize-gelu"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        return recognize(module, _ROOTS, _match, context) > 0
