"""One op as a model of its own: captured as any model is, raised, and run by the numpy interpreter.

So what is compared with eager is all that happens to the op before kernels are made: decompositions at capture, raising
and what is true for every target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.dialect.interpreter.interpreter import executable_copy
from lowerkit.dialect.reference.numeric import Array, quiet
from lowerkit.errors import CaptureError
from lowerkit.mlir import ir
from lowerkit.parity.bisect.torch_ops import MixedInterpreter
from lowerkit.parity.witness.distinct_op import DistinctOp, Extent, value_of
from lowerkit.pipeline import pass_context, run_stages
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.program import Program
from lowerkit.runtimes.arguments import bind_dims
from lowerkit.runtimes.manifest import Signature


class Alone(nn.Module):
    """A model that is one op; its inputs are the op's tensors."""

    def __init__(self, op: DistinctOp) -> None:
        super().__init__()
        self.op = op

    def forward(self, *operands: torch.Tensor) -> Any:
        """Calls the op."""
        return self.op.call(operands)


class LoweredOp(Protocol):
    """An op that was lowered alone, and can be run: by this program or by another one."""

    @property
    def signature(self) -> Signature:
        """Of the op as a model of its own."""
        ...

    def takes(self, inputs: Sequence[Array]) -> None:
        """Raises RuntimeFault, LK8004, where the inputs do not fit the signature or one of its guards."""
        ...

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns what the lowered op computes, or raises a LowerkitError."""
        ...


class RaisedProgram:
    """The captured model of one op, at stage ``canonical``, and the interpreter that runs it.

    Attributes:
        program: as it was lowered; its ``eager`` is the op itself.
    """

    def __init__(self, program: Program) -> None:
        """Lowers the op.

        Args:
            program: as it was captured; it is changed.

        Raises:
            LowerkitError: it cannot be lowered alone.
        """
        self.program = program
        run_stages(self.program, "canonical", pass_context(self.program))
        self._module, self._functions = executable_copy(self.program.module)

    def takes(self, inputs: Sequence[Array]) -> None:
        """Raises RuntimeFault, LK8004, where the inputs do not fit the signature or one of its guards."""
        bind_dims(self.program.signature, inputs)

    @property
    def signature(self) -> Signature:
        """Of the op as a model of its own."""
        return self.program.signature

    @quiet
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns what the lowered op computes.

        Raises:
            LowerkitError: an index is out of range.
        """
        interpreter = MixedInterpreter(self._functions, self.program.weights.get, {}, float64=False, keep=False)
        with self._module.context:
            block = self._functions["main"].regions[0].blocks[0]
            given = [signless(array, value.type) for array, value in zip(inputs, block.arguments, strict=True)]
            values = interpreter.run_block(block, given, {})
        return [typed(value, spec.dtype) for value, spec in zip(values, self.program.signature.outputs, strict=False)]


def raised_op(op: DistinctOp, tensors: Sequence[torch.Tensor]) -> RaisedProgram:
    """Captures and lowers an op of PyTorch.

    Args:
        op: what to run.
        tensors: values at the sizes of the example.

    Raises:
        LowerkitError: it cannot be captured or lowered alone.
    """
    return RaisedProgram(captured_alone(op, tensors))


def captured_alone(op: DistinctOp, tensors: Sequence[torch.Tensor]) -> Program:
    """Returns an op as a captured model of its own; ``tensors`` are values at the sizes of the example."""
    model = Alone(op).eval()
    if not op.sizes:
        return capture_module(model, tensors)
    dims = {name: Dim(name, min=low, max=high) for name, (_, low, high) in op.sizes.items()}
    try:
        return capture_module(model, tensors, dynamic_shapes=(_open(op, dims),))
    except CaptureError:  # the op ties its dims together, or fixes one
        auto = dict.fromkeys(op.sizes, Dim.AUTO)
        return capture_module(model, tensors, dynamic_shapes=(_open(op, auto),))


def _open(op: DistinctOp, dims: Mapping[str, Any]) -> tuple[dict[int, Any], ...]:
    return tuple(
        {axis: _dim(extent, dims) for axis, extent in enumerate(operand.shape) if not isinstance(extent, int)}
        for operand in op.operands
    )


def _dim(extent: Extent, dims: Mapping[str, Any]) -> Any:
    """The dim of an extent, derived from another where torch.export can say so, else for it to find."""
    try:
        return value_of(extent, dims)
    except (TypeError, NotImplementedError, AssertionError):  # of AUTO, and what Dim lacks: //, * of two, min
        return Dim.AUTO


def signless(array: Array, kind: ir.Type) -> Array:
    """Builtin tensors know no sign: unsigned elements are taken as the same bits."""
    unsigned = array.dtype.kind == "u" and "tensor" in str(kind)
    return array.view(array.dtype.name.removeprefix("u")) if unsigned else array


def typed(value: Any, dtype: str) -> Array:
    """Returns a value in the element type that a signature names: the same bits where only the sign is another."""
    array, wanted = np.asarray(value), np.dtype(NUMPY_DTYPES[dtype])
    return array.view(wanted) if array.dtype != wanted and array.dtype.itemsize == wanted.itemsize else array
