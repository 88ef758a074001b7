"""Ops that may run on terms of a sum: the sum of what they compute is what they compute of the sum.

It holds of exact numbers; rounding is another one on the ranks anyhow, as the order of a sum is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from lowerkit.spmd.certificate.graph import Form

_VIEWS = frozenset(
    {
        "linalg.transpose",
        "linalg.broadcast",
        "tensor.expand_shape",
        "tensor.collapse_shape",
        "tensor.extract_slice",
        "tensor.cast",
    }
)
"""Ops that move elements of their first operand, and compute nothing."""

_PRODUCTS = frozenset({"lk.matmul", "lk.integer_matmul", "lk.conv", "lk.conv_transpose", "lk.integer_conv"})
"""Linear in each of their two operands."""

_YIELDED = [["tensor.yield", {}, [-1], [], []]]

Part: TypeAlias = Literal["terms", "whole", "neither"]


def is_linear(form: Form, terms: set[int], operands: int, is_zero: Callable[[int], bool]) -> bool:
    """Whether an op of so many operands is linear in the operands ``terms`` together.

    No constant is added to terms, and no two of them are multiplied. ``is_zero`` says so of an operand.
    """
    if form.name in _VIEWS:
        return terms == {0}
    if form.name == "tensor.concat":
        return len(terms) == operands
    if form.name in _PRODUCTS:
        padded = form.attributes.get("padding_value", 0) != 0
        return len(terms) == 1 and terms <= {0, 1} and not padded
    if form.name == "lk.reduce":
        return form.attributes["kind"] in ("sum", "mean")
    if form.name == "tensor.pad":  # its body is the constant behind the edges
        return terms == {0} and pads_with_its_operand(form) and is_zero(operands - 1)
    return form.name == "linalg.generic" and _body_is_linear(form, terms)


def pads_with_its_operand(form: Form) -> bool:
    """Whether a ``tensor.pad`` has its last operand behind the edges."""
    return form.captured == 1 and form.body == _YIELDED


def _body_is_linear(form: Form, terms: set[int]) -> bool:
    count = len(form.maps)
    parts = list[Part]("terms" if operand in terms else "whole" for operand in range(count))
    if any(operand >= count for operand in terms) or any(op[4] for op in form.body or []):
        return False
    for name, _, read, results, _ in form.body or []:
        held: list[Part] = ["whole" if value < 0 else parts[value] for value in read]
        if name == "linalg.yield":
            return all(part == "terms" for part in held)
        parts += [_part(name, held)] * len(results)
    return False


def _part(name: str, held: list[Part]) -> Part:
    if all(part == "whole" for part in held):
        return "whole"
    if "neither" in held:
        return "neither"
    rule = _RULES.get(name)
    return "terms" if rule is not None and rule(held) else "neither"


def _all_terms(held: list[Part]) -> bool:
    return all(part == "terms" for part in held)


def _one_term(held: list[Part]) -> bool:
    return held.count("terms") == 1


def _first_term(held: list[Part]) -> bool:
    return held == ["terms", "whole"]


_RULES: dict[str, Callable[[list[Part]], bool]] = {
    "arith.addf": _all_terms,
    "arith.subf": _all_terms,
    "arith.addi": _all_terms,
    "arith.subi": _all_terms,
    "arith.negf": _all_terms,
    "arith.mulf": _one_term,
    "arith.muli": _one_term,
    "arith.divf": _first_term,
    "arith.extf": _all_terms,
    "arith.truncf": _all_terms,
}
