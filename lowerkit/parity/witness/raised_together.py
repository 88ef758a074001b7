"""Several ops as one model: one capture and one run of the passes for all, and each is run apart by the interpreter.

Vocabulary
    model     a module whose inputs are the operands of all ops, and whose outputs are their results: no two ops share
              anything, so none can change what another computes.
    part      the ops of the lowered function that hang on the operands of one op, and the constants that these need.

What cannot be captured or lowered together is halved until the one is found that cannot be; that one is left to be
raised alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.dialect.interpreter.interpreter import Interpreter, executable_copy
from lowerkit.dialect.reference.numeric import Array, quiet
from lowerkit.errors import LowerkitError
from lowerkit.mlir import ir, walk
from lowerkit.parity.bisect.torch_ops import MixedInterpreter
from lowerkit.parity.witness.distinct_op import DistinctOp, results_of
from lowerkit.parity.witness.raised_alone import LoweredOp, signless, typed
from lowerkit.pipeline import pass_context, run_stages
from lowerkit.runtimes.arguments import bind_dims
from lowerkit.runtimes.manifest import Signature


@dataclass(frozen=True)
class Example:
    """An op and values of its operands that eager takes."""

    op: DistinctOp
    tensors: Sequence[torch.Tensor]


def raised_together(examples: Sequence[Example]) -> dict[str, LoweredOp]:
    """Returns the lowered ops by their keys; what has open dims, or cannot be lowered, is not there."""
    return _raised([each for each in examples if not each.op.sizes])


def _raised(examples: Sequence[Example]) -> dict[str, LoweredOp]:
    if len(examples) < 2:  # alone it is raised elsewhere
        return {}
    try:
        return {each.op.key: part for each, part in zip(examples, _parts(examples), strict=True)}
    except (LowerkitError, _ApartError):
        half = len(examples) // 2
        return {**_raised(examples[:half]), **_raised(examples[half:])}


class _Together(nn.Module):
    def __init__(self, examples: Sequence[Example]) -> None:
        super().__init__()
        self.counts = [(each.op, len(each.tensors)) for each in examples]

    def forward(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for op, count in self.counts:
            own, operands = operands[:count], operands[count:]
            found += results_of(op.call(own))
        return found


class _ApartError(Exception):
    """Together the ops are more than each of them."""


def _parts(examples: Sequence[Example]) -> list[LoweredOp]:
    counts = [len(results_of(each.op.call([tensor.clone() for tensor in each.tensors]))) for each in examples]
    program = capture_module(_Together(examples).eval(), [tensor for each in examples for tensor in each.tensors])
    whole = program.signature
    if whole.guards or whole.states or len(whole.outputs) != sum(counts):
        raise _ApartError
    run_stages(program, "canonical", pass_context(program))
    module, functions = executable_copy(program.module)
    parts: list[LoweredOp] = []
    first_input = first_output = 0
    with module.context:
        block = functions["main"].regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        for each, count in zip(examples, counts, strict=True):
            takes = slice(first_input, first_input + len(each.tensors))
            gives = slice(first_output, first_output + count)
            first_input, first_output = takes.stop, gives.stop
            inputs, outputs = list(block.arguments)[takes], list(ops[-1].operands)[gives]
            signature = msgspec.structs.replace(whole, inputs=whole.inputs[takes], outputs=whole.outputs[gives])
            interpreter = MixedInterpreter(functions, program.weights.get, {}, float64=False, keep=False)
            parts.append(_Part(signature, module, interpreter, _part(ops[:-1], inputs, outputs), inputs, outputs))
    return parts


def _part(ops: Sequence[ir.Operation], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> list[ir.Operation]:
    """Returns the ops that hang on the inputs, checks without results among them, and what these and the outputs read.

    Ops stand in the order in which they are computed, so one pass to each side finds them.
    """
    reached, needed = set(inputs), set(outputs)
    chosen: set[int] = set()
    for number, op in enumerate(ops):
        if not reached.isdisjoint(_read(op)):
            chosen.add(number)
            reached.update(op.results)
    for number, op in reversed(list(enumerate(ops))):
        if number in chosen or not needed.isdisjoint(op.results):
            chosen.add(number)
            needed.update(_read(op))
    return [ops[number] for number in sorted(chosen)]


def _read(op: ir.Operation) -> list[ir.Value]:
    """Returns the operands of an op and of all ops in its regions."""
    found: list[ir.Value] = []
    walk(op, lambda inner: found.extend(inner.operands))
    return found


@dataclass(frozen=True)
class _Part:
    signature: Signature
    module: ir.Module
    interpreter: Interpreter
    ops: Sequence[ir.Operation]
    inputs: Sequence[ir.Value]
    outputs: Sequence[ir.Value]

    def takes(self, inputs: Sequence[Array]) -> None:
        """Raises RuntimeFault, LK8004, where the inputs do not fit the signature."""
        bind_dims(self.signature, inputs)

    @quiet
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns what the op's part of the model computes.

        Raises:
            LowerkitError: an index is out of range.
        """
        with self.module.context:
            pairs = zip(self.inputs, inputs, strict=True)
            values: dict[ir.Value, Any] = {value: signless(array, value.type) for value, array in pairs}
            self.interpreter.run_ops(self.ops, values)
        return [
            typed(values[value], spec.dtype) for value, spec in zip(self.outputs, self.signature.outputs, strict=True)
        ]
