"""What the loops of a body touch: every load and store, by the memory that it reaches and the place in it.

Vocabulary
    memory  what owns the bytes: an argument of the body or a ``memref.alloc``; views lead back to it
    form    an index as a sum of values times numbers, and a number: ``2 * %i + %offset + 3``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir

VIEWS = ("memref.subview", "memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast")
_PURE = ("arith.", "affine.", "math.")
_PURE_OPS = ("memref.dim", "memref.get_global", "scf.yield", "func.return", *VIEWS)


@dataclass(frozen=True)
class Form:
    """``sum(terms[value] * value) + constant``."""

    terms: Mapping[ir.Value, int]
    constant: int

    def without(self, value: ir.Value) -> Form:
        """The same without the term of ``value``."""
        return Form({each: factor for each, factor in self.terms.items() if each != value}, self.constant)


@dataclass(frozen=True)
class Access:
    """One load or store: of which memory, through which view, and where in the view."""

    memory: ir.Value
    view: ir.Value
    indices: tuple[ir.Value, ...]
    stores: bool


def is_pure(op: ir.Operation) -> bool:
    """Whether an op computes values and views, and touches no memory."""
    return op.name.startswith(_PURE) or op.name in _PURE_OPS


def operations_in(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields ``op`` and all ops inside it, parents first."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield from operations_in(child.operation)


def memory_of(value: ir.Value) -> ir.Value:
    """Returns the argument, the allocation or whatever else a view leads back to."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in VIEWS:
        value = value.owner.operation.operands[0]
    return value


def accesses_in(op: ir.Operation) -> list[Access] | None:
    """Returns what ``op`` and all inside it load and store; None where something else may touch memory."""
    found: list[Access] = []
    for each in operations_in(op):
        operands = list(each.operands)
        if each.name == "memref.load":
            found.append(Access(memory_of(operands[0]), operands[0], tuple(operands[1:]), False))
        elif each.name == "memref.store":
            found.append(Access(memory_of(operands[1]), operands[1], tuple(operands[2:]), True))
        elif not (is_pure(each) or each.name in ("memref.alloc", "memref.alloca") or each.name.startswith("scf.")):
            return None
    return found


def form_of(value: ir.Value) -> Form:
    """Returns an index as a sum; what is none is a term of its own."""
    if isinstance(value.owner, ir.Block):
        return Form({value: 1}, 0)
    op = value.owner.operation
    operands = list(op.operands)
    match op.name:
        case "arith.constant":
            return Form({}, ir.IntegerAttr(op.attributes["value"]).value)
        case "arith.addi":
            return _sum(form_of(operands[0]), form_of(operands[1]))
        case "arith.subi":
            return _sum(form_of(operands[0]), _times(form_of(operands[1]), -1))
        case "arith.muli":
            one, other = form_of(operands[0]), form_of(operands[1])
            if not other.terms:
                return _times(one, other.constant)
            return _times(other, one.constant) if not one.terms else Form({value: 1}, 0)
        case "arith.index_cast":
            return form_of(operands[0])
        case "affine.apply":
            indexing = ir.AffineMapAttr(op.attributes["map"]).value
            return _affine(indexing.results[0], operands, indexing.n_dims) or Form({value: 1}, 0)
        case _:
            return Form({value: 1}, 0)


def _affine(expr: ir.AffineExpr, operands: Sequence[ir.Value], dims: int) -> Form | None:
    if isinstance(expr, ir.AffineConstantExpr):
        return Form({}, expr.value)
    if isinstance(expr, ir.AffineDimExpr):
        return form_of(operands[expr.position])
    if isinstance(expr, ir.AffineSymbolExpr):
        return form_of(operands[dims + expr.position])
    if not isinstance(expr, (ir.AffineAddExpr, ir.AffineMulExpr)):
        return None
    one, other = _affine(expr.lhs, operands, dims), _affine(expr.rhs, operands, dims)
    if one is None or other is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        return _sum(one, other)
    return None if other.terms else _times(one, other.constant)


def _sum(one: Form, other: Form) -> Form:
    terms = {value: one.terms.get(value, 0) + other.terms.get(value, 0) for value in (*one.terms, *other.terms)}
    return Form({value: factor for value, factor in terms.items() if factor}, one.constant + other.constant)


def _times(form: Form, factor: int) -> Form:
    return Form({value: each * factor for value, each in form.terms.items() if factor}, form.constant * factor)
