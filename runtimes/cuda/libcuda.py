"""The driver of a card: libcuda by ctypes. Nothing else of CUDA is needed on the machine that runs an artifact.

Vocabulary
    queue   a stream of the driver; number 0 too is a stream of our own, made when it is first used
    level   ``sm_90`` is compute capability 9.0: machine code runs on it and on later minor versions of 9, PTX on
            whatever comes later
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.driver_errors import OUT_OF_MEMORY, CudaError, check_driver, no_card
from lowerkit.runtimes.cuda.driver_library import DriverLibrary
from lowerkit.runtimes.cuda.launch_memory import ArgumentMemory, encoded, launch
from lowerkit.runtimes.cuda.levels import capability_of, levels_of
from lowerkit.runtimes.device import Bytes

LIBRARY = "libcuda.so.1"
_NO_CODE = (200, 209, 218)  # invalid image, no binary for the GPU, invalid PTX
_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16  # attributes: the compute capability, how many SMs there are
_ERROR_LOG, _ERROR_LOG_SIZE = c_int(5), c_int(6)  # options of the compiler in the driver
_LOG_BYTES = 1 << 14
_OF_THIS_THREAD = 1  # a capture: what other threads do does not end it
_SHARED_UNASKED = 48 << 10  # bytes of dynamic shared memory that a kernel may have without asking
_EARLY_FROM = (12, 3)  # drivers of which a graph can hold launches that start early
_MOST_DYNAMIC_SHARED = 8  # the attribute of a kernel by which it asks


__all__ = ["LIBRARY", "CudaError", "LibCuda", "capability_of", "has_card"]


@dataclass
class _Module:
    """A loaded module, and the calls that keep kernels of it."""

    handle: int
    compiled_by_driver: bool
    kernels: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class _Graph:
    """A captured graph, and what can be launched of it."""

    handle: int
    executable: int


def has_card(level: str, library: str = LIBRARY) -> bool:
    """Returns whether the first card of this machine runs code of ``level``."""
    try:
        LibCuda(level, library).close()
    except (RuntimeFault, CudaError):
        return False
    return True


class LibCuda(Driver):
    """One card of this machine.

    Attributes:
        capability: of the card, major and minor.
        name: of the card.
        driver_version: the CUDA version of the driver.
    """

    def __init__(self, level: str = "", library: str = LIBRARY, number: int = 0) -> None:
        """Opens the card.

        Raises:
            RuntimeFault: LK8020, there is no driver, no card, or one older than ``level``.
        """
        self._call = DriverLibrary(library).call
        self._thread = 0
        self._streams: dict[int, int] = {}
        self._modules: list[_Module] = []
        self._allocations: set[int] = set()
        self._shared: dict[int, int] = {}
        self._after_launch: set[int] = set()  # queues whose last entry is a launch
        count, device, context = c_int(), c_int(), c_void_p()
        try:
            self._call("cuInit", c_uint(0))
            version = c_int()
            self._call("cuDriverGetVersion", byref(version))
            self.driver_version = version.value // 1000, version.value % 1000 // 10
            self._call("cuDeviceGetCount", byref(count))
            if count.value < 1:
                raise no_card("the driver knows no card")
            if number >= count.value:
                raise no_card(f"there is no card {number}: the driver knows {count.value}, counted from 0")
            self._call("cuDeviceGet", byref(device), c_int(number))
            self.capability = self._attribute(device, _MAJOR), self._attribute(device, _MINOR)
            self.processors = self._attribute(device, _PROCESSORS)
            name = ctypes.create_string_buffer(256)
            self._call("cuDeviceGetName", name, c_int(len(name)), device)
            self.name = name.value.decode(errors="replace")
            wanted = min(map(capability_of, levels_of(level)), default=(0, 0))
            if self.capability < wanted:
                major, minor = self.capability
                raise no_card(f"the card {self.name} is sm_{major}{minor}, the artifact was compiled for {level}")
            self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        except CudaError as error:
            raise no_card(str(error)) from error
        self._device, self._context = device, context

    def _attribute(self, device: c_int, which: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), c_int(which), device)
        return value.value

    def allocate(self, size: int) -> int:
        """See :meth:`Driver.allocate`."""
        self._enter()
        address = c_uint64()
        try:
            self._call("cuMemAlloc_v2", byref(address), c_size_t(size))
        except CudaError as error:
            if error.number == OUT_OF_MEMORY:
                raise MemoryError(f"{size} bytes on {self.name}: {error}") from error
            raise
        self._allocations.add(address.value)
        return address.value

    def free(self, address: int) -> None:
        """See :meth:`Driver.free`."""
        self._enter()
        self._allocations.discard(address)
        self._call("cuMemFree_v2", c_uint64(address))

    def write(self, address: int, data: Bytes, queue: int) -> None:
        """See :meth:`Driver.write`; memory that is not locked is staged before the call returns."""
        stream = self._stream(queue)
        self._call("cuMemcpyHtoDAsync_v2", c_uint64(address), c_void_p(data.ctypes.data), c_size_t(data.size), stream)

    def read(self, data: Bytes, address: int, queue: int) -> None:
        """See :meth:`Driver.read`."""
        stream = self._stream(queue)
        self._call("cuMemcpyDtoHAsync_v2", c_void_p(data.ctypes.data), c_uint64(address), c_size_t(data.size), stream)
        self._call("cuStreamSynchronize", stream)

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """See :meth:`Driver.copy`."""
        stream = self._stream(queue)
        self._call("cuMemcpyDtoDAsync_v2", c_uint64(target), c_uint64(source), c_size_t(size), stream)

    def load(self, ptx: bytes, cubin: bytes, level: str) -> _Module:
        """See :meth:`Driver.load`.

        Raises:
            RuntimeFault: LK8020, the driver is too old for the PTX.
            CudaError: the driver takes neither; with what its compiler says of the PTX.
        """
        self._enter()
        handle = c_void_p()
        if cubin and self.capability is not None and capability_of(level)[0] == self.capability[0]:
            try:
                self._call("cuModuleLoadData", byref(handle), c_char_p(cubin))
                return self._keep(handle, compiled_by_driver=False)
            except CudaError as error:
                if error.number not in _NO_CODE:
                    raise
        check_driver(ptx, self.driver_version)
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_ERROR_LOG.value, _ERROR_LOG_SIZE.value)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            self._call("cuModuleLoadDataEx", byref(handle), c_char_p(ptx), c_uint(2), options, values)
        except CudaError as error:
            said = log.value.decode(errors="replace").strip()
            raise CudaError("cuModuleLoadDataEx", error.number, f"{error}; {said}" if said else str(error)) from error
        return self._keep(handle, compiled_by_driver=True)

    def _keep(self, handle: c_void_p, *, compiled_by_driver: bool) -> _Module:
        module = _Module(handle.value or 0, compiled_by_driver)
        self._modules.append(module)
        return module

    def kernel(self, module: _Module, name: str) -> int:
        """See :meth:`Driver.kernel`."""
        if name not in module.kernels:
            self._enter()
            function = c_void_p()
            self._call("cuModuleGetFunction", byref(function), c_void_p(module.handle), c_char_p(name.encode()))
            module.kernels[name] = function.value or 0
        return module.kernels[name]

    def prepared(self, described: LaunchTensorMap) -> LaunchTensorMap:
        """See :meth:`Driver.prepared`.

        Raises:
            RuntimeFault: LK8020, the driver knows no tensor maps.
            CudaError: it takes none of this form.
        """
        self._enter()
        return encoded(self._call, described)

    def launch(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        shared: int,
        arguments: Sequence[LaunchBuffer | LaunchTensorMap | int],
        queue: int,
        *,
        early: bool = False,
    ) -> None:
        """See :meth:`Driver.launch`; behind anything but a launch, none is early."""
        stream = self._stream(queue, launches=True)
        memory = ArgumentMemory(arguments, self._call)
        if shared > self._shared.get(kernel, _SHARED_UNASKED):  # more has to be asked for, once for each kernel
            self._call("cuFuncSetAttribute", c_void_p(kernel), c_int(_MOST_DYNAMIC_SHARED), c_int(shared))
            self._shared[kernel] = shared
        early = early and queue in self._after_launch and self.driver_version >= _EARLY_FROM
        launch(self._call, kernel, (blocks, threads, shared), stream, memory, early=early)
        self._after_launch.add(queue)

    def record(self, queue: int) -> int:
        """See :meth:`Driver.record`."""
        return self._event(queue, 2)  # without a time

    def mark(self, queue: int) -> int:
        """See :meth:`Driver.mark`; of the card's clock."""
        return self._event(queue, 0)

    def seconds_between(self, first: int, last: int) -> float:
        """See :meth:`Driver.seconds_between`."""
        milliseconds = c_float()
        self._call("cuEventSynchronize", c_void_p(last))
        self._call("cuEventElapsedTime", byref(milliseconds), c_void_p(first), c_void_p(last))
        for event in (first, last):
            self._call("cuEventDestroy_v2", c_void_p(event))
        return milliseconds.value * 1e-3

    def _event(self, queue: int, flags: int) -> int:
        stream, event = self._stream(queue), c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(flags))
        self._call("cuEventRecord", event, stream)
        return event.value or 0

    def wait(self, event: int, queue: int) -> None:
        """See :meth:`Driver.wait`; an event is waited for once."""
        self._call("cuStreamWaitEvent", self._stream(queue), c_void_p(event), c_uint(0))
        self._call("cuEventDestroy_v2", c_void_p(event))

    def synchronize(self, queue: int) -> None:
        """See :meth:`Driver.synchronize`."""
        self._call("cuStreamSynchronize", self._stream(queue))

    def begin_capture(self, queue: int) -> None:
        """See :meth:`Driver.begin_capture`."""
        self._call("cuStreamBeginCapture_v2", self._stream(queue), c_int(_OF_THIS_THREAD))

    def end_capture(self, queue: int) -> _Graph:
        """See :meth:`Driver.end_capture`."""
        graph, executable = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", self._stream(queue), byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        except CudaError:
            with suppress(CudaError):
                self._call("cuGraphDestroy", graph)
            raise
        return _Graph(graph.value or 0, executable.value or 0)

    def launch_graph(self, graph: _Graph, queue: int) -> None:
        """See :meth:`Driver.launch_graph`."""
        self._call("cuGraphLaunch", c_void_p(graph.executable), self._stream(queue))

    def destroy_graph(self, graph: _Graph) -> None:
        """See :meth:`Driver.destroy_graph`."""
        self._enter()
        self._call("cuGraphExecDestroy", c_void_p(graph.executable))
        self._call("cuGraphDestroy", c_void_p(graph.handle))

    def close(self) -> None:
        """See :meth:`Driver.close`; what cannot be given back any more is left to the driver."""
        self._thread = 0
        with suppress(CudaError):
            self._enter()
            for stream in self._streams.values():
                self._call("cuStreamSynchronize", c_void_p(stream))
                self._call("cuStreamDestroy_v2", c_void_p(stream))
            for module in self._modules:
                self._call("cuModuleUnload", c_void_p(module.handle))
            for address in self._allocations:
                self._call("cuMemFree_v2", c_uint64(address))
        self._streams, self._modules, self._allocations = {}, [], set()
        with suppress(CudaError):
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _enter(self) -> None:
        """Makes the context that of the thread which calls."""
        thread = threading.get_ident()
        if thread != self._thread:
            self._call("cuCtxSetCurrent", self._context)
            self._thread = thread

    def _stream(self, queue: int, *, launches: bool = False) -> c_void_p:
        """Returns the stream of a queue for one call, of a launch or of anything else."""
        self._enter()
        if not launches:
            self._after_launch.discard(queue)
        if queue not in self._streams:
            stream = c_void_p()
            self._call("cuStreamCreate", byref(stream), c_uint(1))  # 1: waits for no other stream
            self._streams[queue] = stream.value or 0
        return c_void_p(self._streams[queue])
