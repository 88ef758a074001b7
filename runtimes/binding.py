"""From a manifest and the values of its dims to a step table that the native executor runs.

Vocabulary
    root    the buffer that owns the memory which an alias lies in
    base    an address that is known at run time: the arena, the mapped weights, each state (of the
            memory that it lives in), each input, each output, and of each device its arena and its weights; in this
            order
    call    a step that may fail: a device runs it
    bound   a model for one value of each dim: the step table, the output shapes, the sizes of arena and scratch

Steps: evaluate all expressions; resolve aliases to (root, offset) and check that they lie inside; derive for each arena
buffer the steps it lives in; plan the arena; write out the arrays of the step table. Nothing here reads tensor data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lowerkit.runtimes import _native
from lowerkit.runtimes.bound_model import BoundModel
from lowerkit.runtimes.device_calls import DeviceCalls
from lowerkit.runtimes.expressions import Expr, evaluate
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    COLLECTIVE_KERNEL,
    COPY_KERNEL,
    HOST,
    ITEM_SIZES,
    JUMP_KERNEL,
    Buffer,
    ProgramSpec,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.mapping.weight_places import WeightKey, WeightPlace
from lowerkit.runtimes.memory_plan import ARENA_ALIGNMENT, DEVICE_ALIGNMENT, arena_lives, plan_memory
from lowerkit.runtimes.mesh.dims import check_touches, collective_dims
from lowerkit.runtimes.run_faults import check_dims
from lowerkit.runtimes.validation import contradictions

if TYPE_CHECKING:
    from lowerkit.runtimes.mesh.steps import CollectiveCalls

ARENA_BASE = 0
WEIGHTS_BASE = 1
FIRST_STATE_BASE = 2

_ANY_ADDRESS = 64
"""Stands for the address of a kernel where a model is bound only to be measured, never run."""
_SCRATCH_ALIGNMENT = 128  # two cache lines: the prefetcher fetches them in pairs


def bind_model(
    program: ProgramSpec,
    dims: Mapping[str, int],
    weights: Mapping[WeightKey, WeightPlace],
    kernel_address: Callable[[int], int] | None = None,
    calls: DeviceCalls | None = None,
    collectives: CollectiveCalls | None = None,
) -> BoundModel:
    """Binds ``program`` to the values ``dims``.

    Args:
        program: of a manifest without :func:`~lowerkit.runtimes.validation.manifest_problems`.
        dims: the value of each dim of the signature.
        weights: for each weight that a buffer names the place of this rank's part, behind the base of the weights.
        kernel_address: from the number of a kernel of the host to its address; None binds to measure, not to run.
        calls: what devices run, where there are any.
        collectives: what the ranks of the mesh do together; None binds to measure, not to run.

    Raises:
        ArtifactError: LK8001, the manifest contradicts itself for these dims.
    """
    with contradictions(dims):
        return Binder(program, dims, weights, kernel_address, calls, collectives).bind()


class Binder:
    """Binds ``program`` to the values ``dims``, as :func:`bind_model` says."""

    def __init__(
        self,
        program: ProgramSpec,
        dims: Mapping[str, int],
        weights: Mapping[WeightKey, WeightPlace],
        kernel_address: Callable[[int], int] | None,
        calls: DeviceCalls | None,
        collectives: CollectiveCalls | None,
    ) -> None:
        self.program = program
        self.dims = dims
        self.weights = weights
        self.kernel_address = kernel_address
        self.calls = calls
        self.collectives = collectives
        self.cache: dict[Expr, int] = {}
        signature = program.signature
        self.first_input = FIRST_STATE_BASE + len(signature.states)
        self.first_output = self.first_input + len(signature.inputs)
        self.first_device = self.first_output + len(signature.outputs)
        self.devices = {spec.name: number for number, spec in enumerate(program.devices)}
        self.base_count = self.first_device + 2 * len(self.devices)
        self.sizes = [self._value(buffer.size) for buffer in program.buffers]

    def _value(self, expr: Expr) -> int:
        if isinstance(expr, int):
            return expr
        known = self.cache.get(expr)
        if known is None:
            known = self.cache[expr] = evaluate(expr, self.dims)
        return known

    def bind(self) -> BoundModel:
        """Returns the bound model."""
        for number, buffer in enumerate(self.program.buffers):
            self._check_size(number, buffer)
        places, arena_sizes = self.places()
        check_touches(self.program, self.sizes, places)
        scratch = max((self._value(step.scratch_bytes) for step in self.program.steps), default=0)
        if scratch < 0:
            raise ValueError(f"a step needs {scratch} bytes of scratch")
        outputs = self.program.signature.outputs
        return BoundModel(
            dims=dict(self.dims),
            table=self.step_table(places),
            output_shapes=tuple(self._shape(spec) for spec in outputs),
            arena_size=arena_sizes.pop(HOST, 0),
            scratch_stride=-(-scratch // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT,
            device_arenas=arena_sizes,
            steps=self.program.steps,
            calls=self.calls,
            collectives=self.collectives,
        )

    def places(self) -> tuple[list[tuple[int, int]], dict[str, int]]:
        """Returns (base, offset) of each buffer, and the size of the arena of each memory."""
        roots = [self._resolve(number) for number in range(len(self.program.buffers))]
        arena_offsets, arena_sizes = self._plan_arenas(roots)
        return [self._place(root, offset, arena_offsets) for root, offset in roots], arena_sizes

    def _shape(self, spec: TensorSpec) -> tuple[int, ...]:
        shape = tuple(self._value(entry) for entry in spec.shape)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"{spec.name!r} has shape {shape}")
        return shape

    def _check_size(self, number: int, buffer: Buffer) -> None:
        """Compares a buffer with what it stands for: no kernel may be handed less memory than its buffer states."""
        size = self.sizes[number]
        signature = self.program.signature
        expected = size
        match buffer.kind:
            case "weight":
                expected = self.weights[buffer.weight, buffer.shard].size
            case "input":
                expected = self._byte_size(signature.inputs[buffer.index])
            case "output":
                expected = self._byte_size(signature.outputs[buffer.index])
            case "state":
                expected = self._byte_size(signature.states[buffer.index])
            case "arena" | "alias":
                pass
        if size != expected or size < 0:
            raise ValueError(f"buffer {number} ({buffer.kind}) has {size} bytes, its tensor {expected}")

    def _byte_size(self, spec: TensorSpec) -> int:
        return math.prod(self._shape(spec)) * ITEM_SIZES[spec.dtype]

    def _resolve(self, number: int) -> tuple[int, int]:
        """Returns the root of a buffer and its offset in there; each alias lies inside its target."""
        offset = 0
        while (buffer := self.program.buffers[number]).kind == "alias":
            start = self._value(buffer.offset)
            if start < 0 or start + self.sizes[number] > self.sizes[buffer.target]:
                raise ValueError(
                    f"buffer {number} takes bytes {start} to {start + self.sizes[number]} of buffer {buffer.target}, "
                    f"which has {self.sizes[buffer.target]}"
                )
            offset += start
            number = buffer.target
        return number, offset

    def _plan_arenas(self, roots: Sequence[tuple[int, int]]) -> tuple[dict[int, int], dict[str, int]]:
        """Plans the arena buffers of each memory; returns their offsets by number and the sizes of the arenas."""
        lives = arena_lives(self.program, [root for root, _ in roots])
        offsets: dict[int, int] = {}
        totals: dict[str, int] = {}
        for memory in dict.fromkeys(self.program.buffers[number].memory for number in lives):
            here = {number: life for number, life in lives.items() if self.program.buffers[number].memory == memory}
            planned, totals[memory] = plan_memory(
                [self.sizes[number] for number in here],
                [first for first, _ in here.values()],
                [last for _, last in here.values()],
                ARENA_ALIGNMENT if memory == HOST else DEVICE_ALIGNMENT,
            )
            offsets.update(zip(here, planned, strict=True))
        return offsets, totals

    def _place(self, root: int, offset: int, arena_offsets: Mapping[int, int]) -> tuple[int, int]:
        """Returns (base, offset) of a buffer."""
        buffer = self.program.buffers[root]
        if buffer.memory != HOST and buffer.kind != "state":
            base = self.first_device + 2 * self.devices[buffer.memory]
            if buffer.kind == "weight":
                weight = (buffer.weight, buffer.shard)
                stored = self.calls.memories[buffer.memory].weight_offsets[weight] if self.calls else 0
                return base + 1, stored + offset
            return base, arena_offsets.get(root, 0) + offset
        match buffer.kind:
            case "weight":
                return WEIGHTS_BASE, self.weights[buffer.weight, buffer.shard].offset + offset
            case "state":
                return FIRST_STATE_BASE + buffer.index, offset
            case "input":
                return self.first_input + buffer.index, offset
            case "output":
                return self.first_output + buffer.index, offset
            case "arena" | "alias":
                return ARENA_BASE, arena_offsets.get(root, 0) + offset

    def step_table(self, places: Sequence[tuple[int, int]], numbers: Sequence[int] | None = None) -> _native.StepTable:
        """Returns the table of the steps ``numbers``, of all steps where that is None."""
        kernels: list[int] = []
        tasks: list[int] = []
        buffers: list[int] = []
        buffer_begin = [0]
        dims: list[int] = []
        dim_begin = [0]
        targets: list[int] = []
        contexts: list[int] = []
        for number in range(len(self.program.steps)) if numbers is None else numbers:
            step = self.program.steps[number]
            context = self._call_context(number, step)
            contexts.append(context)
            if step.kernel == COPY_KERNEL:
                self._check_copy(number, step)
            if step.kernel == COLLECTIVE_KERNEL:
                kernels.append(self.collectives.address if self.collectives else _ANY_ADDRESS)
                tasks.append(1)
                dims.extend(collective_dims(self.program, number, self.sizes, places))
            elif context >= 0:
                kernels.append(self.calls.address if self.calls else _ANY_ADDRESS)
                tasks.append(1)
                dims.extend(self._value(entry) for entry in step.dims)
            elif step.kernel == COPY_KERNEL:
                kernels.append(_native.copy_kernel_address())
                size = self.sizes[step.buffers[0]]
                tasks.append(-(-size // _native.COPY_TASK_BYTES))
                dims.append(size)
            elif step.kernel == JUMP_KERNEL:
                if any(self.sizes[buffer] < 1 for buffer in step.buffers):
                    raise ValueError(f"step {number} jumps by a buffer without bytes")
                kernels.append(0)
                tasks.append(0)
            elif step.kernel == CHECK_KERNEL:
                kernels.append(_native.index_check_address())
                tasks.append(1)
                assert step.check is not None, "validation has looked"
                extents = [self._value(extent) for extent in step.check.extents]
                dims.extend(check_dims(step.check, extents, self.sizes[step.buffers[0]]))
            else:
                kernels.append(self.kernel_address(step.kernel) if self.kernel_address else _ANY_ADDRESS)
                tasks.append(self._value(step.tasks))
                dims.extend(self._value(entry) for entry in step.dims)
            buffers.extend(step.buffers)
            buffer_begin.append(len(buffers))
            dim_begin.append(len(dims))
            target = step.target if numbers is None else len(numbers)  # a jump leads out of a part of the table
            targets.append(target if step.kernel == JUMP_KERNEL else -1)
        return _native.StepTable(
            kernels,
            _int64(tasks),
            _int64(buffer_begin),
            _int64([places[buffer][0] for buffer in buffers]),
            _int64([places[buffer][1] for buffer in buffers]),
            _int64(dim_begin),
            _int64(dims),
            _int64(targets),
            _int64(contexts),
            self.base_count,
        )

    def _check_copy(self, number: int, step: Step) -> None:
        source, target = (self.sizes[buffer] for buffer in step.buffers)
        if source != target:
            raise ValueError(f"step {number} copies {source} bytes to a buffer of {target}")

    def _call_context(self, number: int, step: Step) -> int:
        """What the executor hands to the call that ``step`` is; -1 where the step is none."""
        calls = self.calls
        if step.kernel == COLLECTIVE_KERNEL:
            return self.collectives.context(step) if self.collectives else 0
        if step.kernel == COPY_KERNEL:
            source, target = (self.program.buffers[buffer].memory for buffer in step.buffers)
            if source == target == HOST:
                return -1
            return calls.copy(source, target, self.sizes[step.buffers[0]], number) if calls else 0
        kernel = self.program.kernels[step.kernel] if step.kernel >= 0 else None
        if kernel is None or kernel.device == HOST:
            return -1
        return calls.launch(step.kernel, kernel, len(step.buffers), len(step.dims), number) if calls else 0


def _int64(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(values, np.int64)
