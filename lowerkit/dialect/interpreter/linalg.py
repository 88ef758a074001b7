"""Meaning of linalg.generic in numpy, vectorized.

Vocabulary
    loops      the iteration space of the op, one size for each dimension of the indexing maps.
    view       an operand spread over the iteration space: one axis for each loop, of size 1 where the loop does not
               index it. Affine maps become strides, so no data is copied.
    fold       the body of a reduction as ``accumulator <op> expression``, where the expression does not read the
               accumulator.

Steps: contractions go to a batched matrix product; folds evaluate their expression over a chunk of the iteration
space and reduce it; any other reduction runs the body once for each point of the reduction loops, vectorized over
the parallel ones; bodies with control flow run point by point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.contraction import contract
from lowerkit.dialect.reference.numeric import Array, is_floating
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

Lookup = Callable[[ir.Value], Any]
RunBody = Callable[[ir.Block, Sequence[Any], Callable[[int], Any]], list[Any]]
"""Runs a body with values for its arguments and for linalg.index; returns what it yields."""

_CHUNK = 1 << 23
"""Points of the iteration space that are evaluated at once: bounds memory."""

_FOLDS: dict[str, Any] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.ori": np.bitwise_or,
    "arith.andi": np.bitwise_and,
}


@dataclass
class Generic:
    """A linalg.generic with its operands at hand."""

    op: ir.Operation
    inputs: list[Any]
    outputs: list[Array]
    maps: list[ir.AffineMap]
    reductions: list[int]
    loops: list[int]

    @property
    def body(self) -> ir.Block:
        """The only block of the body."""
        return self.op.regions[0].blocks[0]

    @property
    def parallel(self) -> list[int]:
        """The loops that are not reductions."""
        return [loop for loop in range(len(self.loops)) if loop not in self.reductions]


def evaluate(op: ir.Operation, get: Lookup, run_body: RunBody, vectorizable: Callable[[str], bool]) -> list[Array]:
    """Returns the results of a linalg.generic on tensors."""
    generic = _read(op, get)
    body_ops = [inner.operation for inner in generic.body.operations]
    if not all(vectorizable(inner.name) for inner in body_ops):
        return _point_by_point(generic, run_body)
    views = [
        view(np.asarray(array), affine, generic.loops)
        for array, affine in zip([*generic.inputs, *generic.outputs], generic.maps, strict=True)
    ]
    if generic.reductions:
        product = contract(generic.op, views[: len(generic.inputs)], views[-1], generic.reductions)
        if product is not None:
            views[-1][...] = product
            return generic.outputs
        if not _is_fold(generic, body_ops):
            _sequential(generic, views, run_body)
            return generic.outputs
    for chunk in _chunks(generic):
        part = [_restrict(each, chunk) for each in views]
        index = _index_arrays(generic, chunk)
        if generic.reductions:
            _fold(generic, part, index, run_body)
            continue
        for destination, value in zip(part[len(generic.inputs) :], run_body(generic.body, part, index), strict=True):
            destination[...] = value
    return generic.outputs


def view(array: Array, affine: ir.AffineMap, loops: Sequence[int]) -> Array:
    """Returns ``array`` spread over the iteration space; writable where the map is one to one."""
    if array.ndim == 0:
        return array.reshape([1] * len(loops))
    strides, offset = [0] * len(loops), [0] * array.ndim
    used = [False] * len(loops)
    for axis, expression in enumerate(affine.results):
        linear = linear_form(expression, len(loops))
        if linear is None:
            return _indexed(array, affine, loops)
        coefficients, offset[axis] = linear
        low = offset[axis] + sum(min(c * (size - 1), 0) for c, size in zip(coefficients, loops, strict=True))
        high = offset[axis] + sum(max(c * (size - 1), 0) for c, size in zip(coefficients, loops, strict=True))
        if math.prod(loops) and (low < 0 or high >= array.shape[axis]):
            raise VerifyError(
                "LK3002",
                f"a linalg op reads {low} to {high} of a dimension of size {array.shape[axis]}",
            )
        for loop, coefficient in enumerate(coefficients):
            strides[loop] += coefficient * array.strides[axis]
            used[loop] = used[loop] or coefficient != 0
    shape = [size if flag else 1 for size, flag in zip(loops, used, strict=True)]
    if not math.prod(shape):
        return np.empty(shape, array.dtype)
    start = array[tuple(slice(position, None) for position in offset)]
    return np.lib.stride_tricks.as_strided(start, shape, strides)


def linear_form(expression: ir.AffineExpr, loops: int) -> tuple[list[int], int] | None:
    """Returns (coefficient of each loop, constant), or None where the expression is not linear."""
    if isinstance(expression, ir.AffineDimExpr):
        return [int(loop == expression.position) for loop in range(loops)], 0
    if isinstance(expression, ir.AffineConstantExpr):
        return [0] * loops, expression.value
    if isinstance(expression, (ir.AffineAddExpr, ir.AffineMulExpr)):
        left, right = linear_form(expression.lhs, loops), linear_form(expression.rhs, loops)
        if left is None or right is None:
            return None
        if isinstance(expression, ir.AffineAddExpr):
            return [a + b for a, b in zip(left[0], right[0], strict=True)], left[1] + right[1]
        if any(right[0]):
            left, right = right, left
        return None if any(right[0]) else ([a * right[1] for a in left[0]], left[1] * right[1])
    return None


def affine_value(expression: ir.AffineExpr, dimensions: Sequence[Any], symbols: Sequence[Any] = ()) -> Any:
    """Evaluates any affine expression on numbers or arrays."""
    if isinstance(expression, ir.AffineDimExpr):
        return dimensions[expression.position]
    if isinstance(expression, ir.AffineSymbolExpr):
        return symbols[expression.position]
    if isinstance(expression, ir.AffineConstantExpr):
        return expression.value
    left = affine_value(expression.lhs, dimensions, symbols)
    right = affine_value(expression.rhs, dimensions, symbols)
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if isinstance(expression, ir.AffineModExpr):
        return left % right
    return left // right if isinstance(expression, ir.AffineFloorDivExpr) else -(-left // right)


def _indexed(array: Array, affine: ir.AffineMap, loops: Sequence[int]) -> Array:
    axes = np.ix_(*[np.arange(size) for size in loops])
    places = [np.asarray(affine_value(expression, axes)) for expression in affine.results]
    return np.broadcast_to(array[tuple(np.broadcast_arrays(*places))], list(loops))


def _read(op: ir.Operation, get: Lookup) -> Generic:
    segments = list(op.attributes["operandSegmentSizes"])
    operands = [get(operand) for operand in op.operands]
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    kinds = [str(kind) for kind in op.attributes["iterator_types"]]
    loops = [-1] * len(kinds)
    for array, affine in zip(operands, maps, strict=True):
        for axis, expression in enumerate(affine.results):
            if isinstance(expression, ir.AffineDimExpr):
                size = np.shape(array)[axis]
                if loops[expression.position] not in (-1, size):
                    raise VerifyError(
                        "LK3002",
                        f"loop {expression.position} of a linalg op runs over {loops[expression.position]} elements "
                        f"of one operand and {size} of another",
                    )
                loops[expression.position] = size
    outputs = [np.array(array) for array in operands[segments[0] :]]
    reductions = [loop for loop, kind in enumerate(kinds) if "reduction" in kind]
    return Generic(op, operands[: segments[0]], outputs, maps, reductions, loops)


def _is_fold(generic: Generic, body_ops: list[ir.Operation]) -> bool:
    """Whether each yielded value is ``accumulator <op> expression`` in a type wide enough to reorder sums."""
    accumulators = list(generic.body.arguments)[len(generic.inputs) :]
    yielded = list(body_ops[-1].operands)
    for accumulator, value in zip(accumulators, yielded, strict=True):
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name not in _FOLDS:
            return False
        if _FOLDS[owner.name] in (np.add, np.multiply) and str(accumulator.type) in ("f16", "bf16"):
            return False
        if sum(operand == accumulator for operand in owner.operands) != 1:
            return False
        if sum(1 for _ in accumulator.uses) != 1:
            return False
    return True


def _fold(generic: Generic, views: list[Array], index: Callable[[int], Any], run_body: RunBody) -> None:
    """Evaluates the expressions over the chunk with a neutral accumulator, and reduces them."""
    count = len(generic.inputs)
    terminator = list(generic.body.operations)[-1].operation
    neutral: list[Any] = []
    functions: list[Any] = []
    for value, destination in zip(terminator.operands, views[count:], strict=True):
        name = value.owner.name
        functions.append(_FOLDS[name])
        neutral.append(np.asarray(_neutral(name, destination.dtype)))
    values = run_body(generic.body, [*views[:count], *neutral], index)
    shape = _chunk_shape(generic, views, index)
    for function, value, destination in zip(functions, values, views[count:], strict=True):
        full = np.broadcast_to(value, shape)
        wide = np.float64 if destination.dtype == np.float32 and function in (np.add, np.multiply) else None
        kwargs = {} if wide is None else {"dtype": wide}
        partial = function.reduce(full, axis=tuple(generic.reductions), keepdims=True, **kwargs)
        destination[...] = function(destination, partial).astype(destination.dtype)


def _chunk_shape(generic: Generic, views: list[Array], index: Callable[[int], Any]) -> list[int]:
    return [np.shape(index(loop))[loop] for loop in range(len(generic.loops))]


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:
    if name in ("arith.addf", "arith.addi", "arith.ori"):
        return np.zeros((), dtype)
    if name in ("arith.mulf", "arith.muli"):
        return np.ones((), dtype)
    if name == "arith.andi":
        return np.ones((), dtype) if dtype == np.bool_ else np.full((), -1, dtype)
    largest = name in ("arith.minimumf", "arith.minsi")
    if is_floating(dtype):
        return np.full((), np.inf if largest else -np.inf).astype(dtype)
    if dtype == np.bool_:
        # As signed numbers true is -1: the smaller one.
        return np.full((), not largest, dtype)
    limits = np.iinfo(dtype)
    return np.full((), limits.max if largest else limits.min, dtype)


def _sequential(generic: Generic, views: list[Array], run_body: RunBody) -> None:
    """Runs the body once for each point of the reduction loops, in order."""
    for point in np.ndindex(*[generic.loops[loop] for loop in generic.reductions]):
        chunk = {loop: slice(at, at + 1) for loop, at in zip(generic.reductions, point, strict=True)}
        part = [_restrict(each, chunk) for each in views]
        values = run_body(generic.body, part, _index_arrays(generic, chunk))
        for destination, value in zip(part[len(generic.inputs) :], values, strict=True):
            destination[...] = value


def _point_by_point(generic: Generic, run_body: RunBody) -> list[Array]:
    count = len(generic.inputs)
    for point in np.ndindex(*generic.loops):
        places = [
            tuple(int(affine_value(expression, point)) for expression in affine.results) for affine in generic.maps
        ]
        arrays = [*generic.inputs, *generic.outputs]
        scalars = [np.asarray(array)[place] for array, place in zip(arrays, places, strict=True)]
        values = run_body(generic.body, scalars, lambda loop, point=point: np.int64(point[loop]))
        for destination, place, value in zip(generic.outputs, places[count:], values, strict=True):
            destination[place] = value
    return generic.outputs


def _chunks(generic: Generic) -> list[dict[int, slice]]:
    """Cuts the longest parallel loop so that a chunk has about ``_CHUNK`` points."""
    points = math.prod(generic.loops)
    parallel = generic.parallel
    if points <= _CHUNK or not parallel:
        return [{}]
    longest = max(parallel, key=lambda loop: generic.loops[loop])
    size = generic.loops[longest]
    step = max(1, size * _CHUNK // points)
    return [{longest: slice(start, min(start + step, size))} for start in range(0, size, step)]


def _restrict(array: Array, chunk: dict[int, slice]) -> Array:
    place = tuple(
        chunk[loop] if loop in chunk and array.shape[loop] != 1 else slice(None) for loop in range(array.ndim)
    )
    return array[(*place, ...)]  # the ellipsis keeps an array of rank 0 an array


def _index_arrays(generic: Generic, chunk: dict[int, slice]) -> Callable[[int], Any]:
    def index(loop: int) -> Array:
        part = chunk.get(loop, slice(0, generic.loops[loop]))
        shape = [1] * len(generic.loops)
        shape[loop] = part.stop - part.start
        return np.arange(part.start, part.stop, dtype=np.int64).reshape(shape)

    return index
