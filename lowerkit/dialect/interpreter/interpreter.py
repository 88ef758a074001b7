"""A numpy interpreter for raised and fused IR: lk, linalg, tensor, arith, math and scf at the tensor level.

It is slow and plain on purpose. Passes prove with it that they keep the meaning of a module, constant folding
computes with it, and lowerings are judged by it. Arrays in and out are numpy's; bf16 is ``ml_dtypes.bfloat16``.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.base import LkOperation
from lowerkit.dialect.interpreter import control_flow
from lowerkit.dialect.interpreter import linalg as interpret_linalg
from lowerkit.dialect.interpreter import scalar as interpret_scalar
from lowerkit.dialect.interpreter import tensor as interpret_tensor
from lowerkit.dialect.ops import (
    CallOp,
    CheckIndicesOp,
    CollectiveDoneOp,
    CollectiveStartOp,
    CondOp,
    RegionOp,
    StateReadOp,
    StateWriteOp,
    WeightOp,
    WhileOp,
)
from lowerkit.dialect.reference.numeric import Array, quiet
from lowerkit.dialect.shapes import is_dynamic, show
from lowerkit.dialect.types import numpy_dtype, signless
from lowerkit.errors import InputError, UnsupportedError
from lowerkit.mlir import ext, ir, run_pipeline

Weights = Callable[[str], Array]
States = MutableMapping[str, Array]
Pending = Callable[[], Array]
"""Gives what a collective computed, when the other ranks are there."""

Combine = Callable[[CollectiveStartOp, Array], Pending]
"""Begins a rank's part in a collective, given its own operand."""


def interpret(
    module_or_function: Any,
    inputs: Sequence[Array],
    weights: Weights | None = None,
    *,
    states: States | None = None,
    function: str = "main",
) -> list[Array]:
    """Runs a function of a module on numpy arrays; the IR is not changed.

    Args:
        module_or_function: a module, or a ``func.func``, of raised or fused IR.
        inputs: one array for each argument; scalars for scalar arguments.
        weights: gives the data of a weight by its name.
        states: the states by name, updated in place.
        function: which function of a module with several.

    Raises:
        InputError: the inputs do not match the function.
        UnsupportedError: an op is not part of the IR described above.
        VerifyError: an index is out of range or shapes contradict each other at run time.
    """
    module, functions = executable_copy(module_or_function)
    with module.context:
        chosen = functions.get(function) or next(iter(functions.values()))
        return Interpreter(functions, weights, states).call(chosen, inputs)


def executable_copy(module_or_function: Any) -> tuple[ir.Module, dict[str, ir.Operation]]:
    """Returns a copy as :class:`Interpreter` takes it, named linalg ops generalized, and its functions by name.

    The ops keep their order and locations.
    """
    module = _own_copy(module_or_function)
    with module.context:
        run_pipeline(module, "builtin.module(linalg-generalize-named-ops)")
        return module, {op.attributes["sym_name"].value: op for op in _functions(module.operation)}


class Interpreter:
    """Runs the functions of one module whose named linalg ops have been generalized."""

    def __init__(
        self,
        functions: dict[str, ir.Operation],
        weights: Weights | None,
        states: States | None,
        combine: Combine | None = None,
    ) -> None:
        self.combine = combine
        self.functions = functions
        self.weights = weights
        self.states: States = {} if states is None else states

    @quiet
    def call(self, function: ir.Operation, inputs: Sequence[Any]) -> list[Any]:
        """Runs one function."""
        block = function.regions[0].blocks[0]
        arguments = [
            _checked(value, argument.type, index)
            for index, (value, argument) in enumerate(_paired(inputs, list(block.arguments)))
        ]
        return self.run_block(block, arguments, {})

    def run_block(
        self,
        block: ir.Block,
        arguments: Sequence[Any],
        outer: dict[ir.Value, Any],
        loop_index: Callable[[int], Any] | None = None,
    ) -> list[Any]:
        """Runs a block and returns the operands of its terminator."""
        # SSA names are unique, so an inner block writes beside the outer values; a later run overwrites its own.
        values = outer
        values.update(zip(block.arguments, arguments, strict=True))
        operations = [view.operation for view in block.operations]
        self.run_ops(operations[:-1], values, loop_index)
        return [values[operand] for operand in operations[-1].operands]

    def run_ops(
        self,
        ops: Sequence[ir.Operation],
        values: dict[ir.Value, Any],
        loop_index: Callable[[int], Any] | None = None,
    ) -> None:
        """Runs ops in their order and keeps what they compute among ``values``, which hold what they read."""
        for op in ops:
            for result, value in zip(op.results, self.run_op(op, values, loop_index), strict=True):
                values[result] = value

    def run_op(
        self, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
    ) -> list[Any]:
        """Runs one op and returns its results."""
        get = values.__getitem__
        if op.name == "arith.constant":
            return [interpret_tensor.constant(op.attributes["value"])]
        known = interpret_scalar.evaluate(op, [get(operand) for operand in op.operands])
        if known is None:
            known = interpret_tensor.evaluate(op, get)
        if known is not None:
            return known
        if op.name.startswith("lk."):
            return self._run_lk(op, values)
        handler = _HANDLERS.get(op.name)
        if handler is None:
            raise UnsupportedError("LK4001", f"the interpreter does not know {op.name}", location=str(op.location))
        return handler(self, op, values, loop_index)

    def _run_lk(self, op: ir.Operation, values: dict[ir.Value, Any]) -> list[Any]:
        view = op.opview
        if isinstance(view, WeightOp):
            if self.weights is None:
                raise InputError("LK1003", f"the module reads weight {view.symbol.value}, but no weights were given")
            return [signless(np.asarray(self.weights(view.symbol.value)))]
        if isinstance(view, CollectiveStartOp) and self.combine is not None:
            return [self.combine(view, values[view.value])]
        if isinstance(view, CollectiveDoneOp):
            return [values[view.pending]()]
        if isinstance(view, StateReadOp):
            return [self._state(view.symbol.value)]
        if isinstance(view, StateWriteOp):
            self.states[view.symbol.value] = values[view.value]
            return []
        if isinstance(view, CheckIndicesOp):
            view.require(values[view.indices], [int(values[extent]) for extent in view.extents])
            return []
        if isinstance(view, RegionOp):
            return self.run_block(view.block, [values[operand] for operand in op.operands], {})
        if isinstance(view, CondOp):
            chosen = view.then_function if values[op.operands[0]].all() else view.else_function
            return self.call(self.functions[chosen.value], [values[operand] for operand in view.inputs])
        if isinstance(view, WhileOp):
            return self._loop(view, [values[operand] for operand in view.inputs])
        if isinstance(view, CallOp) and view.callee.value in self.functions:
            return self.call(self.functions[view.callee.value], [values[operand] for operand in op.operands])
        if isinstance(view, (CallOp, CollectiveStartOp)) or not isinstance(view, LkOperation):
            raise UnsupportedError("LK4001", f"the interpreter cannot run {op.name}", location=str(op.location))
        fields, _, _, _ = ext.partition_fields(view._fields)
        operands = [getattr(view, field.name) for field in fields]
        return list(view.reference(*[None if operand is None else values[operand] for operand in operands]))

    def _loop(self, op: WhileOp, inputs: list[Any]) -> list[Any]:
        condition, body = self.functions[op.condition_function.value], self.functions[op.body_function.value]
        count = len(op.operation.results)
        while self.call(condition, inputs)[0].all():
            inputs = [*self.call(body, inputs), *inputs[count:]]
        return inputs[:count]

    def _state(self, name: str) -> Array:
        if name not in self.states:
            raise InputError("LK1003", f"the module reads state {name}, which has no value")
        return self.states[name]


def _linalg(
    self: Interpreter, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    def run_body(block: ir.Block, arguments: Sequence[Any], index: Callable[[int], Any]) -> list[Any]:
        return self.run_block(block, arguments, values, index)

    return interpret_linalg.evaluate(op, values.__getitem__, run_body, control_flow.is_vectorizable)


def _linalg_index(
    self: Interpreter, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    assert loop_index is not None, "linalg.index outside of a linalg body"
    return [loop_index(op.attributes["dim"].value)]


def _call(
    self: Interpreter, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
) -> list[Any]:
    return self.call(self.functions[op.attributes["callee"].value], [values[operand] for operand in op.operands])


_HANDLERS: dict[str, Callable[..., list[Any]]] = {
    **control_flow.HANDLERS,
    "func.call": _call,
    "linalg.generic": _linalg,
    "linalg.index": _linalg_index,
}


def _own_copy(module_or_function: Any) -> ir.Module:
    """Returns a clone inside a module of its own, so that generalizing named ops does not touch the caller's IR."""
    operation = module_or_function.operation
    with operation.context, ir.Location.unknown():
        module = ir.Module.create()
        functions = _functions(operation) if operation.name == "builtin.module" else [operation]
        with ir.InsertionPoint(module.body):
            for function in functions:
                function.clone()
        return module


def _functions(module: ir.Operation) -> list[ir.Operation]:
    block = module.regions[0].blocks[0]
    return [op.operation for op in block.operations if op.operation.name == "func.func"]


def _paired(inputs: Sequence[Any], arguments: Sequence[ir.Value]) -> list[tuple[Any, ir.Value]]:
    if len(inputs) != len(arguments):
        raise InputError("LK1003", f"the function takes {len(arguments)} inputs, {len(inputs)} were given")
    return list(zip(inputs, arguments, strict=True))


def _checked(value: Any, kind: ir.Type, index: int) -> Any:
    """Returns an input whose dtype and shape are those of the argument."""
    array = np.asarray(value)
    element, shape = (kind.element_type, kind.shape) if isinstance(kind, ir.RankedTensorType) else (kind, [])
    wanted = numpy_dtype(element)
    fits = array.ndim == len(shape) and all(
        is_dynamic(size) or size == actual for size, actual in zip(shape, array.shape, strict=True)
    )
    if array.dtype != wanted or not fits:
        raise InputError(
            "LK1003",
            f"input {index} is {array.dtype} of shape {show(array.shape)}, the function takes {wanted} of shape "
            f"{show(shape)}",
        )
    return array if isinstance(kind, ir.RankedTensorType) else array[()]
