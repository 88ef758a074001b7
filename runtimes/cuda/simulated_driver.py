"""The driver without a card: the PTX of an artifact, launch for launch, on the simulated device.

A launch may touch its own buffers and nothing beside them, may not write its operands, and may not read what nothing
has written: each is a fault (LK8017) that names the instruction and the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.errors import ResourceError
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer
from lowerkit.runtimes.cuda.simulated import Kernel, Module, SimulatedGpu
from lowerkit.runtimes.device import Bytes


class SimulatedDriver(Driver):
    """A device with one queue, which is empty on return.

    Attributes:
        gpu: the device itself.
        launches: how many there were.
        thread_instructions: how many instructions their threads ran.
    """

    def __init__(self, capacity: int = 1 << 33) -> None:
        self.gpu = SimulatedGpu(capacity=capacity, refuse_unwritten=True)
        self.launches = 0
        self.thread_instructions = 0

    def allocate(self, size: int) -> int:
        """See :meth:`Driver.allocate`."""
        try:
            return self.gpu.allocate(size)
        except ResourceError as error:
            raise MemoryError(error.message) from error

    def free(self, address: int) -> None:
        """See :meth:`Driver.free`."""
        self.gpu.free(address)

    def write(self, address: int, data: Bytes, queue: int) -> None:
        """See :meth:`Driver.write`."""
        self.gpu.write(address, data)

    def read(self, data: Bytes, address: int, queue: int) -> None:
        """See :meth:`Driver.read`."""
        data[...] = self.gpu.read(address, data.size)

    def forget(self, address: int, size: int) -> None:
        """See :meth:`Driver.forget`: a kernel that reads the bytes before it wrote them is at fault."""
        self.gpu.forget(address, size)

    def load(self, ptx: bytes, cubin: bytes, level: str) -> Module:
        """See :meth:`Driver.load`; machine code is of no use here.

        Raises:
            UnknownPtx: LK8018, something in the PTX is not known.
        """
        return self.gpu.load(ptx.decode())

    def kernel(self, module: Module, name: str) -> Kernel:
        """See :meth:`Driver.kernel`."""
        return module.kernels[name]

    def launch(
        self, kernel: Kernel, blocks: int, threads: int, arguments: Sequence[LaunchBuffer | int], queue: int
    ) -> None:
        """See :meth:`Driver.launch`.

        Raises:
            KernelFault: LK8017, a thread does what it must not.
        """
        statistics = self.gpu.launch(kernel, (blocks,), (threads,), arguments)
        self.launches += 1
        self.thread_instructions += statistics.thread_instructions

    def record(self, queue: int) -> Any:
        """See :meth:`Driver.record`."""
        return None

    def wait(self, event: Any, queue: int) -> None:
        """See :meth:`Driver.wait`."""

    def synchronize(self, queue: int) -> None:
        """See :meth:`Driver.synchronize`."""

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        self.gpu = SimulatedGpu(capacity=0)
