"""Cuts the ops of a node, and some around them, out of a module: what a pass has to see to go wrong again.

Steps
    1. the ops of the node, and ``reach`` times their neighbours (makers of what they read, readers of what they make);
    2. what is free comes along: weights, constants, lists of constants, empty destinations;
    3. every other value that is read from outside becomes an argument with the array that was computed for it;
    4. what is read outside, or returned, becomes a result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.mlir import func, ir
from lowerkit.parity.bisect.evaluation import Evaluation, main_block, place_of
from lowerkit.parity.bisect.prefixes import Piece
from lowerkit.passes.rewriting import OpMap, OpSet, captured_values, clone_op, operations
from lowerkit.program.dtypes import NUMPY_DTYPES, name_of
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import Signature, TensorSpec

_CONSTANTS = ("torch.constant", "arith.constant")
_FREE = (*_CONSTANTS, "tensor.empty", "lk.weight", "torch.vtensor.literal")
_FREE_OF_FREE = ("torch.prim.", "torch_c.from_builtin_tensor", "linalg.fill", "tensor.dim")


def cut_program(program: Program, evaluation: Evaluation, node: str, reach: int) -> Piece | None:
    """Returns the ops of ``node`` with what is at most ``reach`` ops away as a program; None where there are none.

    Args:
        program: the module.
        evaluation: of the same module in float64, with values.
        node: name of the node.
        reach: how many ops around it.
    """
    ops = operations(main_block(program.module))[:-1]
    # Generalizing named ops keeps the order of ops, but brings constants to the front and joins equal ones.
    placed = [op for op in ops if not op.name.startswith(_CONSTANTS)]
    seen = [op for op in operations(evaluation.block)[:-1] if not op.name.startswith(_CONSTANTS)]
    if len(placed) != len(seen):
        return None
    arrays = OpMap[list[Array]]()
    for op, twin in zip(placed, seen, strict=True):
        arrays[op] = evaluation.values.get(twin)
    chosen = [op for op in ops if place_of(op).node == node and not _is_free(op)]
    if not chosen:
        return None
    for _ in range(reach):
        chosen = _with_neighbours(chosen, ops)
    chosen = _closed(chosen, ops)
    return _build(program, evaluation, chosen, arrays)


def _is_free(op: ir.Operation) -> bool:
    if op.name.startswith(_FREE):
        return True
    return op.name.startswith(_FREE_OF_FREE) and all(_maker(value) and _is_free(_maker(value)) for value in op.operands)  # type: ignore[arg-type]


def _maker(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _sources(op: ir.Operation) -> list[ir.Value]:
    return [*op.operands, *captured_values(op)]


def _with_neighbours(chosen: Sequence[ir.Operation], ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    wanted = OpSet(chosen)
    for op in chosen:
        readers = [use.owner.operation for result in op.results for use in result.uses]
        makers = [maker for value in _sources(op) if (maker := _maker(value)) is not None]
        for near in [*makers, *readers]:
            wanted.add(near)
    return [op for op in ops if op in wanted and not _is_free(op)]


def _closed(chosen: Sequence[ir.Operation], ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Adds what is free, and makers of values that are no tensors: lists and sizes cannot be arguments."""
    wanted = OpSet(chosen)
    todo = list(chosen)
    while todo:
        for value in _sources(todo.pop()):
            maker = _maker(value)
            if maker is not None and maker not in wanted and (_is_free(maker) or not _is_tensor(value)):
                wanted.add(maker)
                todo.append(maker)
    return [op for op in ops if op in wanted]


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) or str(value.type).startswith("!torch.vtensor")


def _build(
    program: Program, evaluation: Evaluation, chosen: Sequence[ir.Operation], arrays: OpMap[list[Array]]
) -> Piece | None:
    inside = OpSet(chosen)
    outside: list[ir.Value] = []
    for op in chosen:
        for value in _sources(op):
            maker = _maker(value)
            if (maker is None or maker not in inside) and value not in outside and not _is_inner(value, program):
                outside.append(value)
    results = [
        result
        for op in chosen
        for result in op.results
        if _is_tensor(result) and not _is_free(op) and any(use.owner.operation not in inside for use in result.uses)
    ]
    found = [_array(value, evaluation, arrays) for value in outside]
    if not results or any(array is None for array in found):
        return None
    inputs = [np.asarray(array) for array in found]
    inputs = [_narrowed(array, value) for array, value in zip(inputs, outside, strict=True)]
    with program.context, chosen[-1].location:
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ([value.type for value in outside], [value.type for value in results]))
        mapping: dict[ir.Value, ir.Value] = dict(zip(outside, main.add_entry_block().arguments, strict=True))
        with ir.InsertionPoint(main.entry_block):
            for op in chosen:
                clone_op(op, mapping)
            func.ReturnOp([mapping[value] for value in results])
    made = [_array(value, evaluation, arrays) for value in results]
    signature = Signature(
        [TensorSpec(f"x{number}", name_of(array.dtype), list(array.shape)) for number, array in enumerate(inputs)],
        [
            TensorSpec(f"y{number}", "f64" if array is None else name_of(array.dtype), list(np.shape(array)))  # type: ignore[arg-type]
            for number, array in enumerate(made)
        ],
    )
    piece = Program(program.context, module, program.weights, signature, program.source, program.stage)
    return Piece(piece, inputs, chosen[-1])


def _is_inner(value: ir.Value, program: Program) -> bool:
    """Whether a value belongs to a block inside of an op: it is cloned with the op."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return block != main_block(program.module)


def _array(value: ir.Value, evaluation: Evaluation, arrays: OpMap[list[Array]]) -> Array | None:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return evaluation.arguments[ir.BlockArgument(value).arg_number]
    found = arrays.get(owner.operation) or []
    number = ir.OpResult(value).result_number
    return found[number] if number < len(found) else None


def _narrowed(array: Array, value: ir.Value) -> Array:
    """Returns a float64 array in the element type that the module gives the value."""
    if array.dtype != np.float64:
        return array
    text = str(value.type)
    element = text.rstrip(">").rpartition("," if text.startswith("!torch") else "x")[2].rpartition("<")[2]
    return array.astype(NUMPY_DTYPES[element]) if element in NUMPY_DTYPES else array
