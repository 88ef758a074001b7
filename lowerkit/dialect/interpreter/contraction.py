"""Contractions of linalg as batched matrix products.

Vocabulary: of the loops, *batch* ones index both inputs and the output, *row* ones the left input and the output,
*column* ones the right input and the output, *inner* ones both inputs only. Any such op is a matrix product after
transposing and flattening: ``[batch, row, inner] @ [batch, inner, column]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lowerkit.dialect.reference.factors import factor
from lowerkit.dialect.reference.numeric import Array, matrix_product, widen
from lowerkit.mlir import ir

_WIDENING = ("arith.extf", "arith.extsi")
_SUMS = {"arith.addf": "arith.mulf", "arith.addi": "arith.muli"}


def contract(op: ir.Operation, inputs: Sequence[Array], output: Array, reductions: Sequence[int]) -> Array | None:
    """Returns the new value of the output view, or None where the op is not a contraction of two operands.

    Sums of f32 are carried in float64, sums of integers in int64 that wraps to the result; f16 and bf16 sums must
    round at each step and are not handled here.
    """
    body = op.regions[0].blocks[0]
    if len(inputs) != 2 or not _is_multiply_accumulate(body) or str(body.arguments[2].type) in ("f16", "bf16", "i1"):
        return None
    left, right = inputs
    rank = output.ndim
    used = [{loop for loop in range(rank) if array.shape[loop] != 1} for array in (left, right, output)]
    if any(loop in used[2] for loop in reductions):
        return None
    batch = [loop for loop in range(rank) if loop in used[0] and loop in used[1] and loop in used[2]]
    inner = [loop for loop in range(rank) if loop in used[0] and loop in used[1] and loop not in used[2]]
    rows = [loop for loop in range(rank) if loop in used[0] and loop not in used[1] and loop in used[2]]
    columns = [loop for loop in range(rank) if loop in used[1] and loop not in used[0] and loop in used[2]]
    if len(batch) + len(inner) + len(rows) + len(columns) != len(used[0] | used[1] | used[2]):
        return None  # a loop that only one operand has, or that only the output has
    if any(left.shape[loop] * right.shape[loop] == 0 for loop in range(rank)):
        return None
    matrix = matrix_product(
        _flatten(factor(left), (batch, rows, inner)), _flatten(factor(right), (batch, inner, columns))
    )
    shape = [output.shape[loop] for loop in (*batch, *rows, *columns)]
    order = np.argsort([*batch, *rows, *columns], kind="stable")
    product = matrix.reshape(shape).transpose(order).reshape(output.shape)
    return (widen(output) + product).astype(output.dtype)


def _flatten(array: Array, groups: Sequence[Sequence[int]]) -> Array:
    kept = [loop for group in groups for loop in group]
    rest = [loop for loop in range(array.ndim) if loop not in kept]
    moved = array.transpose([*kept, *rest])
    return moved.reshape([math.prod(array.shape[loop] for loop in group) for group in groups])


def _is_multiply_accumulate(body: ir.Block) -> bool:
    """Whether the body is ``total + widen(left) * widen(right)``."""
    left, right, total = list(body.arguments)
    operations = [op.operation for op in body.operations]
    names = [op.name for op in operations]
    if not all(name in (*_WIDENING, *_SUMS, *_SUMS.values(), "linalg.yield") for name in names):
        return False
    add = operations[-1].operands[0].owner
    if isinstance(add, ir.Block) or add.name not in _SUMS:
        return False
    others = [operand for operand in add.operands if operand != total]
    if len(others) != 1:
        return False
    multiply = others[0].owner
    if isinstance(multiply, ir.Block) or multiply.name != _SUMS[add.name]:
        return False
    sources = [_source(operand) for operand in multiply.operands]
    return sources in ([left, right], [right, left])


def _source(value: ir.Value) -> ir.Value:
    owner = value.owner
    return value if isinstance(owner, ir.Block) or owner.name not in _WIDENING else owner.operands[0]
