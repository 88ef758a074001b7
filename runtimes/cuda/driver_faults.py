"""Faults of a driver, on demand: what a card, its driver or its memory can do to a program, on the simulated device."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.runtimes.cuda.driver_errors import (
    OUT_OF_MEMORY,
    OUT_OF_RESOURCES,
    WORDS,
    CudaError,
    check_driver,
    no_card,
    no_library,
    no_symbol,
)

_LIBRARY = "libcuda.so.1"
_OPENING = (
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
)
_NEVER = 0


@dataclass(frozen=True)
class DriverFaults:
    """Which faults a simulated driver has; numbers count from 1, 0 is never.

    Each raises what :class:`~lowerkit.runtimes.cuda.libcuda.LibCuda` raises on a machine where it happens.

    Attributes:
        out_of_memory_at: the number of the allocation that finds no memory.
        launch_failure_at: the number of the launch that the card refuses; the device stays usable.
        device_lost_at: the number of the call, behind the opening, at which the device is lost: that call and every
            later one fails, until the device is closed.
        lost_by: the ``CUresult`` of these.
        old_driver: the CUDA version of the driver, such as (11, 4); None for one that takes all PTX.
        missing_symbol: the name of a function that the driver library lacks, such as ``cuGraphLaunch``.
        no_gpu: the driver knows no card.
        no_library: there is no driver library.
    """

    out_of_memory_at: int = _NEVER
    launch_failure_at: int = _NEVER
    device_lost_at: int = _NEVER
    lost_by: int = 719
    old_driver: tuple[int, int] | None = None
    missing_symbol: str = ""
    no_gpu: bool = False
    no_library: bool = False


class FaultyCalls:
    """The calls of one simulated driver, counted; each may fail."""

    def __init__(self, faults: DriverFaults) -> None:
        """Opens the device.

        Raises:
            RuntimeFault: LK8020, there is none, as the faults say.
        """
        self._faults = faults
        self._calls = self._allocations = self._launches = 0
        if faults.no_library:
            raise no_library(_LIBRARY, f"{_LIBRARY}: cannot open shared object file: No such file or directory")
        for name in _OPENING:
            self._require(name)
        if faults.no_gpu:
            raise no_card("the driver knows no card")

    def call(self, name: str) -> None:
        """Calls a function of the driver library.

        Raises:
            RuntimeFault: LK8020, the library lacks it.
            CudaError: the device is lost.
        """
        self._require(name)
        self._calls += 1
        if self._faults.device_lost_at and self._calls >= self._faults.device_lost_at:
            raise CudaError(
                name, self._faults.lost_by, WORDS.get(self._faults.lost_by, f"error {self._faults.lost_by}")
            )

    def allocate(self, size: int) -> None:
        """Allocates.

        Raises:
            MemoryError: there is no memory.
            RuntimeFault, CudaError: as :meth:`call`.
        """
        self.call("cuMemAlloc_v2")
        self._allocations += 1
        if self._allocations == self._faults.out_of_memory_at:
            error = CudaError("cuMemAlloc_v2", OUT_OF_MEMORY, WORDS[OUT_OF_MEMORY])
            raise MemoryError(f"{size} bytes on the simulated device: {error}") from error

    def launch(self, name: str) -> None:
        """Launches a kernel, or a graph.

        Raises:
            RuntimeFault, CudaError: as :meth:`call`, or the card refuses the launch.
        """
        self.call(name)
        self._launches += 1
        if self._launches == self._faults.launch_failure_at:
            raise CudaError(name, OUT_OF_RESOURCES, WORDS[OUT_OF_RESOURCES])

    def load(self, ptx: bytes) -> None:
        """Loads PTX.

        Raises:
            RuntimeFault: LK8020, the driver is too old for it.
            CudaError: as :meth:`call`.
        """
        self.call("cuModuleLoadDataEx")
        if self._faults.old_driver is not None:
            check_driver(ptx, self._faults.old_driver)

    def _require(self, name: str) -> None:
        if name == self._faults.missing_symbol:
            raise no_symbol(_LIBRARY, name)
