"""An interpreter for IR between capture and the end of raising: ops of the torch dialect beside those of lk.

Ops of the torch dialect are run by PyTorch itself, one ATen op each; everything else is
:class:`~lowerkit.dialect.interpreter.interpreter.Interpreter`'s. Values of all ops can be kept, those inside of regions
and of ``linalg`` bodies too (vectorized over the iteration space).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lowerkit.capture.torch_export.graph.functionalize import callable_of
from lowerkit.dialect.interpreter.interpreter import Interpreter, States, Weights
from lowerkit.dialect.reference.numeric import Array
from lowerkit.dialect.types import numpy_dtype
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.program.dtypes import to_numpy, to_torch

_SAME_VALUE = ("torch_c.", "torch.tensor_static_info_cast", "torch.copy.", "torch.overwrite.")
_LISTS = ("torch.prim.ListConstruct", "torch.prim.TupleConstruct")
_UNPACKED = ("torch.prim.ListUnpack", "torch.prim.TupleUnpack")
_NO_VALUE = ("torch.bind_symbolic_shape", "torch.runtime.assert")
_NARROW_CODES = {5: torch.float64, 6: torch.float64, 15: torch.float64}
"""PyTorch's numbers of float16, float32 and bfloat16 in arguments that say an element type."""


class MixedInterpreter(Interpreter):
    """Runs modules of any stage before code generation.

    Attributes:
        seen: first result of an op -> the op and what it computed, in the order in which ops finished (inner ones
            before what holds them). Ops themselves hash by content, values by identity.
    """

    def __init__(
        self,
        functions: dict[str, ir.Operation],
        weights: Weights | None,
        states: States | None,
        *,
        float64: bool,
        keep: bool,
    ) -> None:
        super().__init__(functions, weights, states)
        self.float64 = float64
        self.keep = keep
        self.seen: dict[ir.Value, tuple[ir.Operation, list[Any]]] = {}

    def run_op(
        self, op: ir.Operation, values: dict[ir.Value, Any], loop_index: Callable[[int], Any] | None
    ) -> list[Any]:
        """Runs one op and returns its results."""
        if op.name.startswith(("torch.", "torch_c.")):
            results = self._run_torch(op, [values[operand] for operand in op.operands])
        else:
            results = super().run_op(op, values, loop_index)
        if self.keep and len(op.results):
            self.seen.pop(op.results[0], None)  # an op in a loop: its last value, at its last place
            self.seen[op.results[0]] = (op, results)
        return results

    def _run_torch(self, op: ir.Operation, operands: list[Any]) -> list[Any]:
        name = op.name
        if name == "torch.operator":
            name = "torch." + ir.StringAttr(op.attributes["name"]).value.removeprefix("torch.")
        if name.startswith("torch.constant."):
            return [_constant(op)]
        if name == "torch.vtensor.literal":
            return [self._widened(_literal(op))]
        if name == "torch_c.to_builtin_tensor":
            return [_as_signless(operands[0], op.results[0].type)]
        if name.startswith(_SAME_VALUE):
            return operands[: len(op.results)]
        if name in _LISTS:
            return [operands]
        if name in _UNPACKED:
            return list(operands[0])
        if name in _NO_VALUE or name == "torch.symbolic_int":
            return [0] * len(op.results)
        return self._call(name, op, operands)

    def _call(self, name: str, op: ir.Operation, operands: list[Any]) -> list[Any]:
        _, namespace, *rest = name.split(".")
        packet = getattr(getattr(torch.ops, namespace, None), rest[0], None) if rest else None
        overload = getattr(packet, rest[1] if len(rest) > 1 else "default", None)
        if overload is None:
            raise UnsupportedError("LK4001", f"PyTorch has no op for {name}", location=str(op.location))
        overload = callable_of(overload)
        arguments = [_to_torch(operand) for operand in operands]
        schema = overload._schema.arguments
        if self.float64:
            arguments = [_widen_type(*pair) for pair in zip(arguments, schema, strict=False)]
        positional = [value for value, argument in zip(arguments, schema, strict=False) if not argument.kwarg_only]
        named = {
            argument.name: value for value, argument in zip(arguments, schema, strict=False) if argument.kwarg_only
        }
        with torch.no_grad():
            result = overload(*positional, **named)
        results = list(result) if isinstance(result, tuple) else [result]
        return [_from_torch(value, self._widened) for value in results[: len(op.results)]]

    def _widened(self, array: Array) -> Array:
        narrow = self.float64 and array.dtype.name in ("float32", "float16", "bfloat16")
        return array.astype(np.float64) if narrow else array


def _constant(op: ir.Operation) -> Any:
    if op.name == "torch.constant.none":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.BoolAttr):
        return attribute.value
    value: Any = attribute.value
    return bool(value) if op.name == "torch.constant.bool" else value


def _literal(op: ir.Operation) -> Array:
    from lowerkit.dialect.interpreter.tensor import constant

    attribute = op.attributes["value"]
    kind = ir.RankedTensorType(attribute.type)
    if isinstance(kind.element_type, ir.IntegerType):
        if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
            number = ir.IntegerAttr(attribute.get_splat_value()).value  # -1 for a truth
            return np.full(list(kind.shape), bool(number) if kind.element_type.width == 1 else number)
        return np.array(attribute).reshape(kind.shape)
    return np.asarray(constant(attribute))


def _as_signless(value: Any, kind: ir.Type) -> Any:
    """Builtin tensors know no sign: unsigned elements are taken as the same bits."""
    wanted = numpy_dtype(ir.RankedTensorType(kind).element_type)
    array = np.asarray(value)
    return array.view(wanted) if array.dtype != wanted and array.dtype.itemsize == wanted.itemsize else array


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return to_torch(value)
    if isinstance(value, np.generic):
        return value.item()
    return [_to_torch(item) for item in value] if isinstance(value, list) else value


def _from_torch(value: Any, widen: Callable[[Array], Array]) -> Any:
    if isinstance(value, torch.Tensor):
        return widen(to_numpy(value))
    return [_from_torch(item, widen) for item in value] if isinstance(value, list) else value


def _widen_type(value: Any, argument: Any) -> Any:
    """Returns float64 for an argument that says a narrower floating type."""
    if isinstance(value, int) and not isinstance(value, bool) and "ScalarType" in str(argument.real_type):
        return _NARROW_CODES.get(value, value)
    return value


def flat_tensors(results: Sequence[Any]) -> list[Array]:
    """Returns the arrays among the results of an op."""
    return [value for value in results if isinstance(value, np.ndarray) and value.dtype != object]
