"""Meaning of ops with bodies other than linalg's, and of what stands in bodies: control flow, generated tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lowerkit.dialect.interpreter import linalg as interpret_linalg
from lowerkit.dialect.interpreter import scalar as interpret_scalar
from lowerkit.dialect.interpreter import tensor as interpret_tensor
from lowerkit.dialect.reference.numeric import Array
from lowerkit.dialect.shapes import is_dynamic
from lowerkit.dialect.types import numpy_dtype
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

_IN_BODY = (
    "linalg.index",
    "linalg.yield",
    "tensor.extract",
    "tensor.dim",
    "affine.apply",
    "cf.assert",
    "arith.constant",
)


class Runner(Protocol):
    """What runs the blocks of an op; the interpreter."""

    def run_block(
        self,
        block: ir.Block,
        arguments: Sequence[Any],
        outer: dict[ir.Value, Any],
        loop_index: Callable[[int], Any] | None = None,
    ) -> list[Any]:
        """Runs a block and returns the operands of its terminator."""
        ...


def is_vectorizable(name: str) -> bool:
    """Whether an op computes elementwise when its operands are arrays."""
    return name in _IN_BODY or interpret_scalar.is_known(name)


def _pad(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    rest = iter(list(op.operands)[1:])
    low = interpret_tensor.mixed(op, values.__getitem__, "static_low", rest)
    high = interpret_tensor.mixed(op, values.__getitem__, "static_high", rest)
    source = values[op.operands[0]]
    shape = [size + before + after for size, before, after in zip(source.shape, low, high, strict=True)]
    (fill,) = _generate(runner, op, values, shape, source.dtype)
    # Negative padding crops: only what remains of the source is written.
    to = tuple(slice(max(a, 0), size - max(b, 0)) for a, b, size in zip(low, high, shape, strict=True))
    of = tuple(slice(max(-a, 0), size - max(-b, 0)) for a, b, size in zip(low, high, source.shape, strict=True))
    fill[to] = source[of]
    return [fill]


def _tensor_generate(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    kind, rest = op.results[0].type, iter(list(op.operands))
    shape = [int(values[next(rest)]) if is_dynamic(size) else size for size in kind.shape]
    return _generate(runner, op, values, shape, numpy_dtype(kind.element_type))


def _generate(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], shape: Sequence[int], dtype: Any
) -> list[Array]:
    """Runs a body of index arguments over a shape, at once where it is free of control flow."""
    block = op.regions[0].blocks[0]
    names = [inner.operation.name for inner in block.operations][:-1]
    result = np.empty(list(shape), dtype)
    if all(is_vectorizable(name) for name in names):
        indices = np.meshgrid(*[np.arange(size) for size in shape], indexing="ij") if shape else []
        result[...] = runner.run_block(block, indices, values)[0]
        return [result]
    for point in np.ndindex(*shape):
        result[point] = runner.run_block(block, [np.int64(index) for index in point], values)[0]
    return [result]


def _for(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    lower, upper, step, *carried = [values[operand] for operand in op.operands]
    block = op.regions[0].blocks[0]
    dtype = np.asarray(lower).dtype.type
    for number in range(int(lower), int(upper), int(step)):
        carried = runner.run_block(block, [dtype(number), *carried], values, loop_index)
    return carried


def _if(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    branch = op.regions[0 if bool(values[op.operands[0]]) else 1]
    return runner.run_block(branch.blocks[0], [], values, loop_index) if len(branch.blocks) else []


def _while(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    carried = [values[operand] for operand in op.operands]
    while True:
        keep, *passed = runner.run_block(op.regions[0].blocks[0], carried, values, loop_index)
        if not bool(keep):
            return passed
        carried = runner.run_block(op.regions[1].blocks[0], passed, values, loop_index)


def _affine_apply(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    affine = op.attributes["map"].value
    operands = [values[operand] for operand in op.operands]
    dimensions, symbols = operands[: affine.n_dims], operands[affine.n_dims :]
    return [np.asarray(interpret_linalg.affine_value(affine.results[0], dimensions, symbols), np.int64)]


def _assert(
    runner: Runner, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    if not np.all(values[op.operands[0]]):
        raise VerifyError("LK3002", f"an assertion of the model fails: {op.attributes['msg'].value}")
    return []


HANDLERS: dict[str, Callable[..., list[Any]]] = {
    "affine.apply": _affine_apply,
    "bufferization.materialize_in_destination": lambda runner, op, values, loop_index: [values[op.operands[0]]],
    "cf.assert": _assert,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "tensor.generate": _tensor_generate,
    "tensor.pad": _pad,
}
