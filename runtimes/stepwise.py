"""Runs an artifact one step at a time and shows memory in between: the same code at the same addresses as a run.

It tells a kernel that computes something wrong from a memory plan that lets two values share bytes.
"""

# The parts of a session that a run is made of are its own; this is the other way to run them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowerkit.runtimes import _native
from lowerkit.runtimes.arguments import bind_dims, collect
from lowerkit.runtimes.binding import Binder
from lowerkit.runtimes.device_calls import DeviceCalls
from lowerkit.runtimes.manifest import HOST, ProgramSpec
from lowerkit.runtimes.mapping.weight_places import WeightKey, WeightPlace
from lowerkit.runtimes.mesh.dims import check_touches
from lowerkit.runtimes.run_faults import raise_step_fault
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.validation import contradictions

if TYPE_CHECKING:
    from lowerkit.runtimes.mesh.steps import CollectiveCalls


@dataclass(frozen=True)
class SteppedModel:
    """A bound model whose steps run one at a time.

    ``places`` has for each buffer the base (arena, weights, states, inputs, outputs) and the offset, ``sizes`` its
    bytes.
    """

    tables: tuple[_native.StepTable, ...]
    places: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


def bind_steps(
    program: ProgramSpec,
    dims: Mapping[str, int],
    weights: Mapping[WeightKey, WeightPlace],
    kernel_address: Callable[[int], int],
    calls: DeviceCalls | None = None,
    collectives: CollectiveCalls | None = None,
) -> SteppedModel:
    """Binds ``program`` as :func:`bind_model` does, to a table for each step: the same kernels at the same places.

    Raises:
        ArtifactError: LK8001, the manifest contradicts itself for these dims.
    """
    with contradictions(dims):
        binder = Binder(program, dims, weights, kernel_address, calls, collectives)
        places, _ = binder.places()
        check_touches(program, binder.sizes, places)
        tables = [binder.step_table(places, [number]) for number in range(len(program.steps))]
        return SteppedModel(tuple(tables), tuple(places), tuple(binder.sizes))


class StepwiseRun:
    """One run of a session, step by step, in order. The session is not to be used otherwise meanwhile.

    All ranks of a mesh run the same steps: a collective waits for the others.
    """

    def __init__(self, session: Session, *inputs: Any, **named: Any) -> None:
        """Prepares a run; nothing is run yet.

        Raises:
            RuntimeFault: LK8004, the arguments do not fit the signature.
            ResourceError: LK7002, out of memory.
        """
        self._session = session
        self._arrays = collect(session.signature, inputs, named)
        self._bound, self.outputs, self._bases = session._prepare(self._arrays)
        dims = bind_dims(session.signature, self._arrays)
        self._stepped = bind_steps(
            session.program,
            dims,
            session._weights.places,
            session._kernel_address,
            session._calls,
            session._collectives,
        )

    @property
    def dims(self) -> Mapping[str, int]:
        """The value of each dim of the signature."""
        return self._bound.dims

    def run_step(self, number: int) -> None:
        """Runs step ``number`` of the program.

        Raises:
            RuntimeFault: LK8015, it checks indices, and one is out of range; LK8016, a device failed.
            LowerkitError: it is a collective, and failed.
        """
        session = self._session
        table = self._stepped.tables[number]
        with self._bound.together():
            self._require_success(
                number, table.run(session._pool, self._bases, session._scratch, self._bound.scratch_stride)
            )

    def time_step(self, number: int) -> int:
        """Runs step ``number`` of the program, as :meth:`run_step`; returns the nanoseconds that it took."""
        session = self._session
        table = self._stepped.tables[number]
        session._calls.one_by_one(enabled=True)
        try:
            with self._bound.together():
                times, fault = table.profile(session._pool, self._bases, session._scratch, self._bound.scratch_stride)
                self._require_success(number, fault)
        finally:
            session._calls.one_by_one(enabled=False)
        return int(times.sum())

    def read(self, buffer: int) -> npt.NDArray[np.uint8]:
        """Returns a copy of the bytes of a buffer as they are now.

        Raises:
            CollectiveFault: LK8011, they were in memory of a group that was closed.
        """
        with self._bound.together():
            return self._read(buffer)

    def _require_success(self, number: int, fault: tuple[int, int, int, int] | None) -> None:
        if fault is not None:
            session = self._session
            found = (number, *fault[1:])
            raise_step_fault(session.program.steps, found, self._bound.dims, session._calls, session._collectives)

    def _read(self, buffer: int) -> npt.NDArray[np.uint8]:
        base, offset = self._stepped.places[buffer]
        size = self._stepped.sizes[buffer]
        address = self._bases[base] + offset
        memory = self._session.program.buffers[buffer].memory
        if memory != HOST:
            data = np.empty(size, np.uint8)
            if size:
                self._session._calls.memories[memory].read(data, address)
            return data
        return np.frombuffer(ctypes.string_at(address, size), np.uint8) if size else np.empty(0, np.uint8)
