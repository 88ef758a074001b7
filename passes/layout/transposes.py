"""Permutations of dimensions, and ``linalg.transpose`` built with what is already known folded in.

A permutation ``p`` reads: dimension i of the result is dimension ``p[i]`` of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import ir, linalg, tensor
from lowerkit.passes.rewriting import DYNAMIC, defined_by, dimension, element_of, empty_like, shape_of


def permutation_of(op: ir.Operation) -> list[int]:
    """Returns the permutation of a ``linalg.transpose``."""
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def inverse(permutation: Sequence[int]) -> list[int]:
    """Returns the permutation that undoes ``permutation``."""
    result = [0] * len(permutation)
    for index, axis in enumerate(permutation):
        result[axis] = index
    return result


def is_identity(permutation: Sequence[int]) -> bool:
    """Whether nothing moves."""
    return list(permutation) == list(range(len(permutation)))


def channels_to_last(rank: int) -> list[int]:
    """Returns N C spatial -> N spatial C."""
    return [0, *range(2, rank), 1]


def channels_to_second(rank: int) -> list[int]:
    """Returns N spatial C -> N C spatial."""
    return [0, rank - 1, *range(1, rank - 1)]


def untransposed(value: ir.Value) -> tuple[ir.Value, list[int]]:
    """Returns (source, permutation) of a ``linalg.transpose``; of another value the value and the identity."""
    op = defined_by(value, "linalg.transpose")
    if op is None:
        return value, list(range(len(shape_of(value))))
    return op.operands[0], permutation_of(op)


def build_transpose(value: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Transposes ``value`` at the current insertion point.

    A transpose of a transpose becomes one; nothing is built for the identity; where only extents of one move, the
    bytes stay where they are and a pair of views is built.
    """
    source, before = untransposed(value)
    total = [before[axis] for axis in permutation]
    if is_identity(total):
        return source
    shape = shape_of(source)
    if moves_units_only(shape, total):
        return _move_units(source, shape, total)
    init = empty_like(source, total, element_of(source))
    op = linalg.TransposeOp([init.type], source, init, list(total))
    block = op.regions[0].blocks.append(element_of(source), element_of(source))
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return op.results[0]


def moves_units_only(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a transpose leaves the bytes where they are, because only extents of one change places."""
    moved = [axis for axis in permutation if shape[axis] != 1]
    return moved == sorted(moved)


def _move_units(value: ir.Value, shape: Sequence[int], permutation: Sequence[int]) -> ir.Value:
    """Drops the extents of one and puts them in where ``permutation`` wants them."""
    kept = [extent for extent in shape if extent != 1]
    squeezed = value
    if len(kept) < len(shape):
        kind = ir.RankedTensorType.get(kept, element_of(value))
        squeezed = tensor.CollapseShapeOp(kind, value, unit_groups(shape)).result
    return expand_units(squeezed, [shape[axis] for axis in permutation])


def unit_groups(shape: Sequence[int]) -> list[list[int]]:
    """Groups dimensions so that each group holds one extent that is not one (none at all: no groups)."""
    groups: list[list[int]] = []
    pending: list[int] = []
    for axis, extent in enumerate(shape):
        pending.append(axis)
        if extent != 1:
            groups.append(pending)
            pending = []
    if groups:
        groups[-1].extend(pending)
    return groups


def expand_units(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Views ``value`` as ``shape``, which differs from its own by extents of one only."""
    if list(shape) == shape_of(value):
        return value
    sizes = [dimension(value, axis) for axis, extent in enumerate(shape_of(value)) if extent == DYNAMIC]
    target = ir.RankedTensorType.get(list(shape), element_of(value))
    return tensor.ExpandShapeOp(target, value, unit_groups(shape), sizes, list(shape)).result


def is_transpose(value: ir.Value) -> bool:
    """Whether ``value`` is the result of a ``linalg.transpose``."""
    return defined_by(value, "linalg.transpose") is not None
