"""The states of one session: memory that outlives a run, such as a KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.arguments import Array, as_array, describe
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ITEM_SIZES, Signature, TensorSpec


class StateMemory:
    """Page-aligned memory for each state of a signature. Not thread-safe: its session holds the lock."""

    def __init__(self, signature: Signature, initials: Mapping[str, Array]) -> None:
        """``initials``: the bytes that a state starts from, by name; zeros where there are none."""
        self.specs = signature.states
        self.memories = [_native.Memory(math.prod(_shape(spec)) * ITEM_SIZES[spec.dtype]) for spec in self.specs]
        self._initials = initials
        self.reset()

    @property
    def addresses(self) -> list[int]:
        """Where each state lies, in the order of the signature."""
        return [memory.address for memory in self.memories]

    def reset(self) -> None:
        """Puts every state back to its initial value."""
        for spec, memory in zip(self.specs, self.memories, strict=True):
            initial = self._initials.get(spec.name)
            memory.bytes()[:] = 0 if initial is None else initial

    def values(self) -> dict[str, Array]:
        """Returns a copy of each state, by name."""
        return {
            spec.name: memory.bytes().view(numpy_dtype(spec.dtype)).reshape(_shape(spec)).copy()
            for spec, memory in zip(self.specs, self.memories, strict=True)
        }

    def assign(self, values: Mapping[str, Any]) -> None:
        """Gives the named states new values.

        Raises:
            RuntimeFault: LK8004, with every name that is no state and every mismatch; nothing is changed then.
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
        for spec, memory in zip(self.specs, self.memories, strict=True):
            if spec.name in arrays:
                memory.bytes()[:] = arrays[spec.name].reshape(-1).view(np.uint8)


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a state holds integers only: `manifest_problems` has made sure."""
    return tuple(evaluate(entry, {}) for entry in spec.shape)
