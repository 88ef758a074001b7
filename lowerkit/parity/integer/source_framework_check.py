"""Compares what a quantized model means in lowerkit with what its owner computes, op by op.

The owner is ONNX Runtime with its optimizations off, or eager. The module of stage ``canonical`` is interpreted once:
there each op that rounds to stored integers stands alone. Its value is compared with the owner's value of the same
node, and then replaced by it: the next op starts from the owner's numbers and inherits nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.interpreter import Interpreter
from lowerkit.dialect.types import signless
from lowerkit.mlir import ir, run_pipeline
from lowerkit.parity.integer.rows import OwnerRow, difference
from lowerkit.program.locations import last_part, origin_of
from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]

_ROUNDING = frozenset({"lk.quantize", "lk.requant"})


def holds_quantization(program: Program) -> bool:
    """Whether a program at stage ``canonical`` has ops that round to stored integers."""
    block = program.main.regions[0].blocks[0]
    return any(view.operation.name in _ROUNDING for view in block.operations)


def check_owner(program: Program, inputs: Sequence[Array]) -> tuple[list[OwnerRow], list[str]]:
    """Compares a program at stage ``canonical``, which is not changed.

    Returns:
        A row for each op that rounds to integers, and a line for each whose value the owner does not have.
    """
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
        run_pipeline(module, "builtin.module(linalg-generalize-named-ops)")
    block = ir.SymbolTable(module.operation)["main"].operation.regions[0].blocks[0]
    body = [view.operation for view in list(block.operations)[:-1]]
    nodes = {_node(op) for op in body if op.name in _ROUNDING}
    owner = _owner_values(program, inputs, nodes)
    states = {spec.name: program.weights.get(spec.name) for spec in program.signature.states}
    interpreter = Interpreter({}, program.weights.get, states)
    values: dict[ir.Value, Any] = {
        argument: signless(array) for argument, array in zip(block.arguments, inputs, strict=True)
    }
    rows: list[OwnerRow] = []
    missing: list[str] = []
    for op in body:
        with np.errstate(all="ignore"):
            results = interpreter.run_op(op, values, None)
        values.update(zip(op.results, results, strict=True))
        if op.name not in _ROUNDING:
            continue
        ours = np.asarray(results[0])
        theirs = _matching(owner.get(_node(op)), ours)
        if theirs is None:
            missing.append(f"{_node(op) or op.name}: the owner has no value of that name and size")
            continue
        unsigned = ir.BoolAttr(op.attributes["unsigned"]).value
        place = origin_of(last_part(op.location)).source_line or ""
        rows.append(OwnerRow(_node(op), op.name, place, ours.size, *difference(ours, theirs, unsigned)))
        values[op.results[0]] = theirs
    return rows, missing


def _node(op: ir.Operation) -> str:
    return origin_of(last_part(op.location)).node


def _owner_values(program: Program, inputs: Sequence[Array], nodes: set[str]) -> Mapping[str, Array]:
    if program.functional is not None:
        from lowerkit.parity.references.torch_nodes import node_values

        values = node_values(program.functional, inputs, nodes, float64=False)
        return {node: arrays[0] for node, arrays in values.items() if len(arrays) == 1}
    if program.onnx_model is None:
        return {}
    from lowerkit.parity.references.onnx_nodes import onnx_node_values

    found = onnx_node_values(program, inputs, nodes)
    # What rounds is the first result of its node; DynamicQuantizeLinear has scale and zero point behind it.
    return {node: next(iter(outputs.values())) for node, outputs in found.items() if outputs}


def _matching(value: Array | None, like: Array) -> Array | None:
    """Returns the owner's value with our bits and in our order of dimensions; None where it is another value."""
    if value is None or value.size != like.size or signless(value).dtype != like.dtype:
        return None
    value = signless(value)
    if value.shape == like.shape and (value.ndim < 2 or np.array_equal(value, like)):
        return value
    # Passes moved views off the way: the owner's value may be permuted and reshaped.
    orders = itertools.permutations(range(value.ndim)) if value.ndim <= 5 else [tuple(range(value.ndim))]
    candidates = (value.transpose(order).reshape(like.shape) for order in orders)
    return min(candidates, key=lambda candidate: int(np.count_nonzero(candidate != like)))
