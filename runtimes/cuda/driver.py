"""What a CUDA device asks of a driver: libcuda on a machine with a card, the simulated one anywhere.

Both get the same calls in the same order; :class:`~lowerkit.runtimes.cuda.device.CudaDevice` knows no difference.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.device import Bytes
from lowerkit.runtimes.on_device.values import NamedCall

__all__ = ["Driver", "LaunchBuffer", "LaunchTensorMap"]


class Driver(ABC):
    """Memory, modules, launches and queues of one device.

    Attributes:
        capability: compute capability of the device, major and minor; None where it runs code of every level.
        processors: its SMs; 0 where that is not known.
        named: the step that the next calls are a part of, where somebody says it; for messages.
    """

    capability: tuple[int, int] | None = None
    processors: int = 0
    named: NamedCall | None = None

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Returns the address of ``size`` bytes, a multiple of 256.

        Raises:
            MemoryError: there are not that many.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Gives memory back, when all that was put into queues is done."""

    @abstractmethod
    def write(self, address: int, data: Bytes, queue: int) -> None:
        """Copies bytes to the device; ``data`` may change on return."""

    @abstractmethod
    def read(self, data: Bytes, address: int, queue: int) -> None:
        """Copies bytes from the device, after all that is in ``queue``; they are there on return."""

    @abstractmethod
    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """Copies bytes within the device's memory, in the order of ``queue``; a capture keeps it."""

    def forget(self, address: int, size: int) -> None:  # noqa: B027
        """Says that the content of memory does not matter any more: it is written before it is read again."""

    @abstractmethod
    def load(self, ptx: bytes, cubin: bytes, level: str) -> Any:
        """Returns a module: of the machine code where there is some that the device runs, else of the PTX."""

    @abstractmethod
    def kernel(self, module: Any, name: str) -> Any:
        """Returns a kernel of a module."""

    def prepared(self, described: LaunchTensorMap) -> LaunchTensorMap:
        """Returns a tensor map as launches take it at once, again and again; here as it is."""
        return described

    @abstractmethod
    def launch(
        self,
        kernel: Any,
        blocks: int,
        threads: int,
        shared: int,
        arguments: Sequence[LaunchBuffer | LaunchTensorMap | int],
        queue: int,
        *,
        early: bool = False,
    ) -> None:
        """Puts a launch into a queue.

        Args:
            kernel: what :meth:`kernel` returned.
            blocks: of the grid, 1 or more.
            threads: of a block.
            shared: bytes of dynamic shared memory of a block.
            arguments: buffers are their addresses, of 64 bits; numbers have up to 64, tensor maps 128 bytes.
            queue: where to.
            early: whether it may start before the launch in front of it in the queue has ended: its kernel waits for
                that by itself, before it touches memory.
        """

    @abstractmethod
    def record(self, queue: int) -> Any:
        """Returns an event that is over when everything put into ``queue`` so far is done."""

    @abstractmethod
    def wait(self, event: Any, queue: int) -> None:
        """Lets what is put into ``queue`` from now on start after ``event``."""

    @abstractmethod
    def synchronize(self, queue: int) -> None:
        """Returns when everything in ``queue`` is done."""

    def mark(self, queue: int) -> Any:
        """Returns a point in time: when everything put into ``queue`` so far is done; of this machine's clock here."""
        self.synchronize(queue)
        return time.perf_counter()

    def seconds_between(self, first: Any, last: Any) -> float:
        """Returns the seconds between two points of one queue, which are given back."""
        return last - first

    @abstractmethod
    def begin_capture(self, queue: int) -> None:
        """Begins to keep what is put into a queue instead of doing it.

        Until :meth:`end_capture`, nothing but launches and copies within the device's memory may be put into the queue,
        and no memory may be allocated or given back.
        """

    @abstractmethod
    def end_capture(self, queue: int) -> Any:
        """Returns a graph of what was put into the queue since :meth:`begin_capture`, ready to be launched."""

    @abstractmethod
    def launch_graph(self, graph: Any, queue: int) -> None:
        """Puts all of a graph into a queue, with the addresses of the time when it was captured."""

    @abstractmethod
    def destroy_graph(self, graph: Any) -> None:
        """Gives a graph back, when its launches are done."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back."""
