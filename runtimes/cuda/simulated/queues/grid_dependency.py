"""Launches that start before the one in front of them in their queue has ended: what their threads must wait for.

A thread of such a launch waits by ``griddepcontrol.wait`` until that launch has ended and its memory is seen. Here
launches run one after the other, so the wait changes no value: instead no thread may touch global memory before it has
waited, and none may leave without, since what follows in the queue waits for this launch alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess, ByteStore
from lowerkit.runtimes.cuda.simulated.device_memory import Allocation, DeviceMemory
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

NOT_WAITED = "the launch is an early one, and the thread has not run griddepcontrol.wait"


class GridDependency:
    """Which threads of a batch have waited."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._some = False  # whether there are any
        self._left = batch.alive.copy()  # threads that have not waited
        self._kernel = ""

    def begin_early(self, kernel: str) -> None:
        """Says that the launch is an early one, of a kernel of that name."""
        self._some, self._kernel = bool(self._left.any()), kernel
        self._batch.memory = _EarlyMemory(self._batch.memory, self)
        self._batch.leaving.append(self._leave)

    def wait(self) -> None:
        """Lets the active threads wait."""
        if self._some:
            self._left &= ~self._batch.mask(self._batch.active)
            self._some = bool(self._left.any())

    @property
    def hinders(self) -> bool:
        """Whether an active thread has not waited."""
        return self._some and bool((self._left & self._batch.mask(self._batch.active)).any())

    def _leave(self, gone: Array) -> None:
        without = gone & self._left
        if without.any():
            name = self._batch.thread_name(int(np.argmax(without)))
            raise KernelFault(
                f"kernel {self._kernel}: {name} ends without griddepcontrol.wait, though its launch is an early one: "
                "what follows would not wait for what came before",
                hint="a kernel that never waits is not launched early",
            )


class _EarlyMemory(DeviceMemory):
    """The memory of a launch, which is not there for threads that have not waited."""

    def __init__(self, memory: DeviceMemory, dependency: GridDependency) -> None:
        self.__dict__.update(memory.__dict__)
        self._dependency = dependency

    def holder(self, addresses: Array, width: int) -> Allocation | None:
        """See :meth:`DeviceMemory.holder`; None as long as a thread has to wait, which :meth:`pieces` then says."""
        return None if self._dependency.hinders else super().holder(addresses, width)

    def pieces(self, addresses: Array, width: int, write: bool) -> Iterator[tuple[ByteStore, Array, Array | None]]:
        """See :meth:`DeviceMemory.pieces`.

        Raises:
            BadAccess: likewise, and where a thread has not waited.
        """
        if self._dependency.hinders:
            raise BadAccess(NOT_WAITED, np.ones(addresses.shape, np.bool_))
        yield from super().pieces(addresses, width, write)
