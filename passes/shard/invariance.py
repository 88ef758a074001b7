"""The mark of a program whose bits are the same on every mesh, and that of a product whose sum is a tree."""

from __future__ import annotations

from lowerkit.dialect.types import is_float
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import defining_op, nested_operations

INVARIANT = "lk.invariant"
"""On the module and its functions: no float is summed but in an order that hangs on the length of the sum alone."""

CHUNKED = "lk.chunked"
"""On an ``lk.matmul``: its first dimension counts parts of a sum, one or several for each rank."""

EXACT = "lk.exact"
"""On what makes a term of a sum of which the other ranks' terms are -0 wherever it is something else."""

_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "linalg.transpose"})
_MOVES = frozenset({"lk.weight", "lk.gather", "lk.scatter", "lk.sort", "lk.topk"})
"""Ops of the dialect that compute no floats."""

_SUMMING = frozenset({"lk.reduce", "lk.softmax", "lk.avg_pool"})
"""Ops through which transposes move, and that add."""

_INEXACT = frozenset({"sum", "mean", "prod"})
"""Of ``lk.reduce``: what another order rounds in another way."""


def mark_invariant(module: ir.Module) -> None:
    """Marks a module, and its functions: bodies of branches and loops go through passes in modules of their own."""
    for op in (module.operation, *(each.operation for each in module.body.operations)):
        op.attributes[INVARIANT] = ir.UnitAttr.get(module.context)


def is_invariant(op: ir.Operation) -> bool:
    """Whether the module or the function that holds ``op`` is marked."""
    top = op
    while INVARIANT not in top.attributes and top.parent is not None:
        top = top.parent.operation
    return INVARIANT in top.attributes


def mark_chunked(product: ir.Value) -> None:
    """Marks the product that makes a value."""
    op = defining_op(product)
    assert op is not None, "a product is an op"
    op.attributes[CHUNKED] = ir.UnitAttr.get(op.context)


def is_chunked(op: ir.Operation) -> bool:
    """Whether a product is marked."""
    return CHUNKED in op.attributes


def mark_exact(term: ir.Value) -> None:
    """Marks what makes a term of a sum that is exact."""
    op = defining_op(term)
    assert op is not None, "a term is made by an op"
    op.attributes[EXACT] = ir.UnitAttr.get(op.context)


def is_exact(term: ir.Value) -> bool:
    """Whether a term is marked, or a view of one that is."""
    op = defining_op(term)
    while op is not None and op.name in _VIEWS:
        op = defining_op(op.operands[0])
    return op is not None and EXACT in op.attributes


def sums_in_layout(op: ir.Operation) -> bool:
    """Whether an op of a marked module adds floats in an order that hangs on how its operand lies in memory.

    Collectives end what transposes move through, so that the layout would hang on the mesh.
    """
    if op.name not in _SUMMING or not is_invariant(op) or not is_float(ir.ShapedType(op.operands[0].type).element_type):
        return False
    return op.name != "lk.reduce" or ir.StringAttr(op.attributes["kind"]).value in _INEXACT


def is_for_kernels(op: ir.Operation) -> bool:
    """Whether an op of a marked module must not be computed ahead of time: it sums floats or computes functions of
    them, of which the interpreter gives other bits, and a part may be small enough for it where the whole is not."""
    if not is_invariant(op) or not any(
        is_float(ir.ShapedType(result.type).element_type) for result in op.results if _is_shaped(result)
    ):
        return False
    if op.name.startswith("lk."):
        return op.name not in _MOVES
    is_reduction = "iterator_types" in op.attributes and "reduction" in str(op.attributes["iterator_types"])
    return is_reduction or any(inner.name.startswith("math.") for inner in nested_operations(op))


def _is_shaped(value: ir.Value) -> bool:
    return isinstance(value.type, ir.ShapedType)
