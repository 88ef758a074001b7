"""Runs a module of any stage on the same inputs, in float64 or in the model's own element types, and keeps values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.interpreter import Combine, executable_copy
from lowerkit.dialect.reference.numeric import Array, is_floating, quiet
from lowerkit.dialect.types import floats_as_float64
from lowerkit.mlir import ir
from lowerkit.parity.bisect.torch_ops import MixedInterpreter, flat_tensors
from lowerkit.program.locations import Origin, last_part, origin_of
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.state_parts import own_slices


@dataclass(frozen=True)
class RankOf:
    """One rank of a mesh.

    Attributes:
        place: where it is along each axis.
        combine: what its interpreter begins collectives with.
    """

    place: Mapping[str, int]
    combine: Combine

    def own_weights(self, program: Program, whole: Callable[[str], Array]) -> Callable[[str], Array]:
        """Returns what gives the rank's part of a weight by its name."""

        def get(name: str) -> Array:
            shard = program.weights.shard(name)
            return whole(name) if shard is None else shard.part(whole(name), self.place)

        return get

    def own_states(self, program: Program, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the rank's part of what each state starts from."""
        shapes = {
            spec.name: [extent for extent in spec.shape if isinstance(extent, int)] for spec in program.signature.states
        }
        cuts = program.state_cuts
        return {
            name: value[own_slices(shapes[name], cuts.get(name, []), program.mesh, self.place)]
            for name, value in whole.items()
        }


class OpValues:
    """The tensors of ops, in the order in which they were computed. Looked up by op: ops hash by content, so a dict
    of them would not do."""

    def __init__(self, seen: Mapping[ir.Value, tuple[ir.Operation, list[Any]]]) -> None:
        found = {first: (op, flat_tensors(results)) for first, (op, results) in seen.items()}
        self._by_result = {first: entry for first, entry in found.items() if entry[1]}

    def get(self, op: ir.Operation) -> list[Array]:
        """Returns the tensors of an op, none where it has none or was not run."""
        entry = self._by_result.get(op.results[0]) if len(op.results) else None
        return [] if entry is None else entry[1]

    def items(self) -> list[tuple[ir.Operation, list[Array]]]:
        """Returns all ops with tensors."""
        return list(self._by_result.values())


@dataclass
class Evaluation:
    """What a module computed.

    Attributes:
        module: the copy that was run; ``values`` refers to its ops.
        arguments: what ``@main`` was given, floats in float64 where asked for.
        outputs: of ``@main``.
        values: of ops, inner ones before what holds them; empty where they were not asked for.
    """

    module: ir.Module
    arguments: list[Array]
    outputs: list[Array]
    values: OpValues

    @property
    def block(self) -> ir.Block:
        """The body of ``@main``."""
        return main_block(self.module)


def main_block(module: ir.Module) -> ir.Block:
    """Returns the body of ``@main``."""
    return ir.SymbolTable(module.operation)["main"].operation.regions[0].blocks[0]


@quiet
def evaluate(
    program: Program,
    inputs: Sequence[Array],
    *,
    float64: bool,
    keep: bool = False,
    make: Callable[..., MixedInterpreter] = MixedInterpreter,
    rank: RankOf | None = None,
) -> Evaluation:
    """Runs the module that ``program`` holds now.

    Args:
        program: at any stage before ``compiled``.
        inputs: in the order of the signature.
        float64: every float is float64 (weights, inputs, constants, what weights are folded into).
        keep: keep the value of every op.
        make: makes the interpreter, of the arguments of :class:`MixedInterpreter`.
        rank: which rank of a mesh it is; None: the program is for one device.

    Raises:
        LowerkitError: the interpreter does not know an op.
        Exception: what PyTorch or numpy raises for an op of the module that cannot be run.
    """
    module, functions = executable_copy(program.module)
    weights = _wide_weights(program) if float64 else program.weights.get
    states = {
        spec.name: np.asarray(weights(spec.name)) for spec in program.signature.states if spec.name in program.weights
    }
    if rank is not None:
        weights, states = rank.own_weights(program, weights), rank.own_states(program, states)
    interpreter = make(functions, weights, states, float64=float64, keep=keep)
    interpreter.combine = None if rank is None else rank.combine
    with module.context, floats_as_float64(float64):
        block = functions["main"].regions[0].blocks[0]
        arguments = [
            _argument(value, argument, float64) for value, argument in zip(inputs, block.arguments, strict=True)
        ]
        outputs = [np.asarray(value) for value in interpreter.run_block(block, arguments, {})]
    return Evaluation(module, arguments, outputs, OpValues(interpreter.seen))


def flat_values(values: OpValues) -> dict[str, list[Array]]:
    """Returns the tensors of all ops by the node that they stand for."""
    found: dict[str, list[Array]] = {}
    for op, tensors in values.items():
        found.setdefault(place_of(op).node, []).extend(tensors)
    return found


def wide(array: Array) -> Array:
    """Returns floats as float64, everything else as it is."""
    return array.astype(np.float64) if is_floating(array.dtype) and array.dtype != np.float64 else array


def place_of(op: ir.Operation) -> Origin:
    """Returns the node, module path and frames of what an op, or the last thing that was fused into it, stands for."""
    return origin_of(last_part(op.location))


def _wide_weights(program: Program) -> Callable[[str], Array]:
    """Weights in float64; derived ones are derived again from float64, so that folding rounds nothing."""
    known: dict[str, Array] = {}

    def get(name: str) -> Array:
        if name not in known:
            known[name] = wide(program.weights.recompute(name, get))
        return known[name]

    return get


def _argument(value: Array, argument: Any, float64: bool) -> Array:
    array = np.asarray(value)
    kind = argument.type
    if isinstance(kind, ir.RankedTensorType) and str(kind.element_type) == "i8":
        return array.view(np.int8)  # builtin tensors know no sign
    return wide(array) if float64 else array
