"""The memory of one rank, as the runtime allocates it for a compiled program.

Vocabulary
    weights        the tensors that the rank reads, of those that ranks share its own part; not the first values of
                   states, which stand beside them in a file and are read once
    states         what outlives a run, such as caches: every state of the signature
    activations    the arena: values of a run, placed by liveness
    scratch        what kernels need beside them, of one thread
    communication  of the arena, the most that operands and results of collectives take at once: ranks of a host see
                   into it, so it is not copied; it is not added again
    arguments      inputs and outputs
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerkit.runtimes.binding import bind_model
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ITEM_SIZES, ProgramSpec, TensorSpec
from lowerkit.runtimes.memory_plan import arena_lives, weight_places


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank; the module says what is what.

    Attributes:
        weights, states, activations, scratch, arguments: what adds up to the total.
        communication: a part of the activations.
    """

    weights: int
    states: int
    activations: int
    scratch: int
    communication: int
    arguments: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.states + self.activations + self.scratch + self.arguments


def memory_of(program: ProgramSpec, dims: Mapping[str, int]) -> RankMemory:
    """Returns the memory of a rank that runs ``program``, when the symbolic dims have the values ``dims``.

    Raises:
        ArtifactError: LK8001, the program contradicts itself for these dims.
    """
    bound = bind_model(program, dims, weight_places(program, dims))
    weights = {
        (buffer.weight, buffer.shard): evaluate(buffer.size, dims)
        for buffer in program.buffers
        if buffer.kind == "weight"
    }
    signature = program.signature
    return RankMemory(
        weights=sum(weights.values()),
        states=_bytes(signature.states, dims),
        activations=bound.arena_size + sum(bound.device_arenas.values()),
        scratch=bound.scratch_stride,
        communication=_communication(program, dims),
        arguments=_bytes([*signature.inputs, *signature.outputs], dims),
    )


def _bytes(specs: Sequence[TensorSpec], dims: Mapping[str, int]) -> int:
    return sum(math.prod(evaluate(extent, dims) for extent in spec.shape) * ITEM_SIZES[spec.dtype] for spec in specs)


def _communication(program: ProgramSpec, dims: Mapping[str, int]) -> int:
    """The largest sum of the sizes of arena buffers that collectives name and that are live at one step."""
    roots = [_root(program, number) for number in range(len(program.buffers))]
    named = {roots[buffer] for step in program.steps if step.collective for buffer in step.buffers}
    changes: dict[int, int] = {}
    for root, (first, last) in arena_lives(program, roots).items():
        if root in named:
            size = evaluate(program.buffers[root].size, dims)
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def _root(program: ProgramSpec, number: int) -> int:
    while program.buffers[number].kind == "alias":
        number = program.buffers[number].target
    return number
