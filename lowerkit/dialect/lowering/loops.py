"""scf loops that carry values, for what linalg cannot state: running values and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.mlir import ir, scf

LoopBody = Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]]


def for_loop(count: build.Size, carried: Sequence[ir.Value], body: LoopBody) -> list[ir.Value]:
    """Runs ``body(iteration, carried)`` for each of ``count`` iterations; it returns the next carried values."""
    zero, one = build.constant_index(0), build.constant_index(1)
    op = scf.ForOp(zero, build.as_index(count), one, list(carried))
    with ir.InsertionPoint(op.body):
        scf.YieldOp(list(body(op.induction_variable, list(op.inner_iter_args))))
    return list(op.operation.results)


def for_each_row(
    sizes: Sequence[build.Size],
    axis: int,
    carried: Sequence[ir.Value],
    body: Callable[[Callable[[ir.Value], list[ir.Value]], list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """Nests loops over all dimensions but ``axis``.

    ``body(at, carried)`` handles one row; ``at(position)`` gives the full index of a position along ``axis``.
    """
    others = [dimension for dimension in range(len(sizes)) if dimension != axis]

    def nest(depth: int, place: dict[int, ir.Value], values: list[ir.Value]) -> Sequence[ir.Value]:
        if depth == len(others):

            def at(position: ir.Value) -> list[ir.Value]:
                return [position if dimension == axis else place[dimension] for dimension in range(len(sizes))]

            return body(at, values)
        dimension = others[depth]
        return for_loop(
            sizes[dimension], values, lambda index, inner: nest(depth + 1, {**place, dimension: index}, inner)
        )

    return list(nest(0, {}, list(carried)))
