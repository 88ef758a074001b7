"""The states of one session: memory that outlives a run, such as a KV cache, with the host or on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.arguments import Array, as_array, describe
from lowerkit.runtimes.device import Bytes
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import HOST, ITEM_SIZES, ProgramSpec, TensorSpec
from lowerkit.runtimes.mapping.mapped_weights import MappedWeights
from lowerkit.runtimes.mesh.state_parts import own_slices
from lowerkit.runtimes.on_device.memory import DeviceFailure, DeviceMemory, raise_failure


class _HostState:
    """Page-aligned memory of the host."""

    def __init__(self, size: int) -> None:
        self._memory = _native.Memory(size)
        self.address = self._memory.address

    def read(self) -> Bytes:
        return self._memory.bytes().copy()

    def write(self, data: Bytes) -> None:
        self._memory.bytes()[:] = data


class _DeviceState:
    """Memory of a device, at one address as long as the session lives: graphs hold it."""

    def __init__(self, size: int, memory: DeviceMemory) -> None:
        self._size, self._memory = size, memory
        self.address = memory.allocate(size) if size else 0

    def read(self) -> Bytes:
        data = np.empty(self._size, np.uint8)
        if self._size:
            self._memory.read(data, self.address)
        return data

    def write(self, data: Bytes) -> None:
        if self._size:
            self._memory.write(self.address, data)


class StateMemory:
    """Memory for each state of a program. Not thread-safe: its session holds the lock."""

    def __init__(
        self,
        program: ProgramSpec,
        weights: MappedWeights,
        memories: Mapping[str, DeviceMemory],
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        """Allocates the states and gives them their initial values.

        Args:
            program: says of each state where it lives, and which part of it a rank has.
            weights: hold the values that states start from; zeros where there are none.
            memories: of the devices, by name.
            ranks: place of this process along each axis of the mesh; None is the first one everywhere.

        Raises:
            RuntimeFault: LK8016, a device fails.
            ResourceError: LK7002, it has not the memory.
        """
        self.specs = program.signature.states
        self._initials = {name: weights.tensor(weight) for name, weight in program.state_initials.items()}
        self._parts = {
            spec.name: own_slices(_shape(spec), program.state_cuts[spec.name], program.mesh, ranks or {})
            for spec in self.specs
            if spec.name in program.state_cuts
        }
        self._sizes = [math.prod(_shape(spec)) * ITEM_SIZES[spec.dtype] for spec in self.specs]
        homes = {buffer.index: buffer.memory for buffer in program.buffers if buffer.kind == "state"}
        self._states: list[_HostState | _DeviceState] = []
        try:
            for number, size in enumerate(self._sizes):
                home = homes.get(number, HOST)
                self._states.append(_HostState(size) if home == HOST else _DeviceState(size, memories[home]))
        except DeviceFailure as failure:
            raise_failure(failure)
        self.reset()

    @property
    def addresses(self) -> list[int]:
        """Where each state lies in its memory, in the order of the signature."""
        return [state.address for state in self._states]

    def reset(self) -> None:
        """Puts every state back to its initial value.

        Raises:
            RuntimeFault: LK8016, a device fails.
        """
        try:
            for spec, size, state in zip(self.specs, self._sizes, self._states, strict=True):
                initial = self._initials.get(spec.name)
                state.write(np.zeros(size, np.uint8) if initial is None else self._own_bytes(spec.name, initial))
        except DeviceFailure as failure:
            raise_failure(failure)

    def _own_bytes(self, name: str, initial: Array) -> Bytes:
        own = initial[self._parts[name]] if name in self._parts else initial
        return np.ascontiguousarray(own).reshape(-1).view(np.uint8)

    def values(self) -> dict[str, Array]:
        """Returns a copy of each state, by name.

        Raises:
            RuntimeFault: LK8016, a device fails.
        """
        try:
            return {
                spec.name: state.read().view(numpy_dtype(spec.dtype)).reshape(_shape(spec))
                for spec, state in zip(self.specs, self._states, strict=True)
            }
        except DeviceFailure as failure:
            raise_failure(failure)

    def assign(self, values: Mapping[str, Any]) -> None:
        """Gives the named states new values.

        Raises:
            RuntimeFault: LK8004, with every name that is no state and every mismatch; nothing is changed then. LK8016,
                a device fails.
        """
        problems = [f"{name!r} is no state of the model" for name in values if name not in {s.name for s in self.specs}]
        arrays: dict[str, Array] = {}
        for spec in self.specs:
            array = as_array(spec, values[spec.name], problems, "state") if spec.name in values else None
            if array is not None and array.shape != _shape(spec):
                problems.append(f"state {spec.name!r} has shape {list(array.shape)}, expected {list(_shape(spec))}")
            elif array is not None:
                arrays[spec.name] = array
        if problems:
            raise RuntimeFault(
                "LK8004",
                "the values do not fit the states of the model",
                details=problems,
                hint=f"the model has {', '.join(map(describe, self.specs)) or 'no states'}",
            )
        try:
            for spec, state in zip(self.specs, self._states, strict=True):
                if spec.name in arrays:
                    state.write(arrays[spec.name].reshape(-1).view(np.uint8))
        except DeviceFailure as failure:
            raise_failure(failure)


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a state holds integers only: `manifest_problems` has made sure."""
    return tuple(evaluate(entry, {}) for entry in spec.shape)
