"""A model for one value of each dim, and how it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowerkit.runtimes import _native
from lowerkit.runtimes.device_calls import DeviceCalls
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import Step
from lowerkit.runtimes.run_faults import endless, raise_step_fault

if TYPE_CHECKING:
    from lowerkit.runtimes.mesh.steps import CollectiveCalls


@dataclass(frozen=True)
class StepTime:
    """How long one step took in one run, and the work it did (flops and bytes moved, as the compiler counts them)."""

    name: str
    kind: str
    family: str
    location: str
    nanoseconds: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class BoundModel:
    """A model for one value of each dim.

    ``scratch_stride`` is the scratch of one thread, ``device_arenas`` the arena of each device, in bytes.
    """

    dims: Mapping[str, int]
    table: _native.StepTable
    output_shapes: tuple[tuple[int, ...], ...]
    arena_size: int
    scratch_stride: int
    device_arenas: Mapping[str, int]
    steps: Sequence[Step]
    calls: DeviceCalls | None
    collectives: CollectiveCalls | None = None

    def run(self, pool: _native.ThreadPool, bases: Sequence[int], scratch: _native.Memory) -> None:
        """Runs all steps.

        Raises:
            RuntimeFault: LK8014, its loops did not end; LK8015, an index is out of range; LK8016, a device failed.
            ResourceError: LK7002, a device ran out of memory.
            LowerkitError: a collective failed, as a group's operations do.
        """
        if self.collectives is None:  # a context manager would take a tenth of a small model's run
            self._run(pool, bases, scratch)
        else:
            with self.collectives.run():
                self._run(pool, bases, scratch)

    def profile(self, pool: _native.ThreadPool, bases: Sequence[int], scratch: _native.Memory) -> list[StepTime]:
        """Runs all steps; returns the time of each.

        Raises:
            LowerkitError: as for :meth:`run`.
        """
        with self.together():
            try:
                times, fault = self.table.profile(pool, bases, scratch, self.scratch_stride)
            except OverflowError as error:
                raise endless(error) from None
            self._require_success(fault)
        return [
            StepTime(
                name=step.name,
                kind=step.kind,
                family=step.family,
                location=step.location,
                nanoseconds=nanoseconds,
                flops=evaluate(step.flops, self.dims),
                bytes=evaluate(step.bytes, self.dims),
            )
            for step, nanoseconds in zip(self.steps, times.tolist(), strict=True)
        ]

    def _run(self, pool: _native.ThreadPool, bases: Sequence[int], scratch: _native.Memory) -> None:
        try:
            fault = self.table.run(pool, bases, scratch, self.scratch_stride)
        except OverflowError as error:
            raise endless(error) from None
        if fault is not None:
            self._require_success(fault)

    def together(self) -> AbstractContextManager[None]:
        """Returns what steps run in: the ranks of a mesh stay together, however a run ends."""
        return nullcontext() if self.collectives is None else self.collectives.run()

    def _require_success(self, fault: tuple[int, int, int, int] | None) -> None:
        if fault is not None:
            raise_step_fault(self.steps, fault, self.dims, self.calls, self.collectives)
