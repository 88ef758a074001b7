"""Raises what goes by the diagonals of matrices: tril, triu, diag and its kind, eye."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.linalg_builder import (
    Size,
    as_index,
    constant_index,
    extract,
    filled,
    loop_index,
    loops,
    map_elements,
    size_of,
    sizes_of,
)
from lowerkit.mlir import arith, ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import size_from
from lowerkit.passes.raising.core.raise_permutations import transposed
from lowerkit.passes.raising.core.slices import add, maximum, minimum, subtract
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    from_builtin,
    int_of,
    tensor_info,
    to_builtin,
)


def _triangle(*, lower: bool) -> Rule:
    """tril, triu: (input, diagonal): what is not on that side of the diagonal is 0."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value, offset = to_builtin(op.operands[0]), size_from(op.operands[1])
        rank, element = value.type.rank, value.type.element_type

        def kept(item: ir.Value) -> ir.Value:
            diagonal = as_index(add(loop_index(rank - 2), offset))
            inside = scalar.compare("le" if lower else "ge", loop_index(rank - 1), diagonal)
            return scalar.select(inside, item, scalar.constant(0, element))

        result = map_elements([(value, loops(range(rank)))], sizes_of(value), element, kept)
        return [from_builtin(result, tensor_info(op.results[0]))]

    return rule


def _offsets(offset: Size) -> tuple[Size, Size]:
    """Returns the row and the column where a diagonal begins."""
    return maximum(subtract(0, offset), 0), maximum(offset, 0)


def _matrices_last(rank: int, one: int, other: int) -> list[int]:
    """The order of dims in which ``one`` and ``other`` come last."""
    return [*(axis for axis in range(rank) if axis not in (one, other)), one, other]


def diagonal(value: ir.Value, offset: Size, one: int, other: int) -> ir.Value:
    """Returns the diagonal of the dims ``one`` and ``other`` as the last dim."""
    sizes = sizes_of(value)
    row, column = _offsets(offset)
    length = maximum(minimum(subtract(sizes[one], row), subtract(sizes[other], column)), 0)
    order = _matrices_last(len(sizes), one, other)

    def element() -> ir.Value:
        places = [loop_index(axis) for axis in range(len(sizes) - 2)]
        last = loop_index(len(sizes) - 2)
        places += [as_index(add(last, row)), as_index(add(last, column))]
        return extract(value, [places[order.index(axis)] for axis in range(len(sizes))])

    return map_elements([], [*(sizes[axis] for axis in order[:-2]), length], value.type.element_type, element)


def _diagonal(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """diagonal: (input, offset, dim, dim): the diagonal is the last dim of the result."""
    info, offset = tensor_info(op.operands[0]), size_from(op.operands[1])
    one, other = (info.normalized_axis(int_of(operand)) for operand in op.operands[2:4])
    return [from_builtin(diagonal(to_builtin(op.operands[0]), offset, one, other), tensor_info(op.results[0]))]


def _diag(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """diag: (input, offset): the diagonal of a matrix, or a matrix with a vector on it."""
    value, offset = to_builtin(op.operands[0]), size_from(op.operands[1])
    result = diagonal(value, offset, 0, 1) if value.type.rank == 2 else embedded(value, offset)
    return [from_builtin(result, tensor_info(op.results[0]))]


def _placed(
    vectors: ir.Value, sizes: Sequence[Size], offset: Size, otherwise: Callable[[Sequence[ir.Value]], ir.Value]
) -> ir.Value:
    """Returns matrices of ``sizes`` with ``vectors`` on a diagonal, and elsewhere what ``otherwise`` gives."""
    rank = len(sizes)
    row, _ = _offsets(offset)
    last = as_index(maximum(subtract(size_of(vectors, rank - 2), 1), 0))

    def element() -> ir.Value:
        places = [loop_index(axis) for axis in range(rank)]
        on_it = scalar.compare("eq", places[-1], as_index(add(places[-2], offset)))
        along = as_index(subtract(places[-2], row))
        inside = arith.MinSIOp(arith.MaxSIOp(along, constant_index(0)).result, last).result
        return scalar.select(on_it, extract(vectors, [*places[:-2], inside]), otherwise(places))

    return map_elements([], sizes, vectors.type.element_type, element)


def embedded(vectors: ir.Value, offset: Size) -> ir.Value:
    """Returns matrices in the last two dims with ``vectors`` on a diagonal, and zeros beside it."""
    sizes = sizes_of(vectors)
    row, column = _offsets(offset)
    extent = add(sizes[-1], add(row, column))
    element = vectors.type.element_type
    if 0 in vectors.type.shape:
        return filled([*sizes[:-1], extent, extent], scalar.constant(0, element))
    return _placed(vectors, [*sizes[:-1], extent, extent], offset, lambda places: scalar.constant(0, element))


def _embed(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """diag_embed: (vectors, offset, dim, dim)."""
    wanted = tensor_info(op.results[0])
    one, other = (wanted.normalized_axis(int_of(operand)) for operand in op.operands[2:4])
    matrices = embedded(to_builtin(op.operands[0]), size_from(op.operands[1]))
    order = _matrices_last(wanted.rank, one, other)
    return [from_builtin(transposed(matrices, [order.index(axis) for axis in range(wanted.rank)]), wanted)]


def _scatter(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """diagonal_scatter: (input, source, offset, dim, dim): the source stands on the diagonal."""
    info, offset = tensor_info(op.operands[0]), size_from(op.operands[2])
    one, other = (info.normalized_axis(int_of(operand)) for operand in op.operands[3:5])
    vectors = to_builtin(cast(op.operands[1], info.dtype))
    order = _matrices_last(info.rank, one, other)
    value = transposed(to_builtin(op.operands[0]), order)
    if 0 in vectors.type.shape:
        return [op.operands[0]]
    matrices = _placed(vectors, sizes_of(value), offset, lambda places: extract(value, places))
    result = transposed(matrices, [order.index(axis) for axis in range(info.rank)])
    return [from_builtin(result, tensor_info(op.results[0]))]


def _eye(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """eye, eye.m: (rows[, columns], ...): ones on the diagonal."""
    wanted = tensor_info(op.results[0])
    rows = size_from(op.operands[0])
    sizes = [rows, size_from(op.operands[1]) if op.name.endswith(".m") else rows]
    element = wanted.builtin_type().element_type

    def item() -> ir.Value:
        on_it = scalar.compare("eq", loop_index(0), loop_index(1))
        return scalar.select(on_it, scalar.constant(1, element), scalar.constant(0, element))

    return [from_builtin(map_elements([], sizes, element, item), wanted)]


@dataclass(frozen=True)
class RaiseDiagonals(TablePass):
    """Raises ops on diagonals. Precondition: none."""

    name: ClassVar[str] = "raise-diagonals"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.tril": _triangle(lower=True),
        "torch.aten.triu": _triangle(lower=False),
        **{f"torch.aten.{name}": _diagonal for name in ("diagonal", "diagonal_copy")},
        "torch.aten.diag": _diag,
        "torch.aten.diag_embed": _embed,
        "torch.aten.diagonal_scatter": _scatter,
        "torch.aten.eye": _eye,
        "torch.aten.eye.m": _eye,
    }
