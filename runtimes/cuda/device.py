"""The CUDA device: runs the functions of an artifact as launches of the kernels in its image.

``cuda`` is a card, ``cuda-sim`` the simulated one; they differ in their driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer
from lowerkit.runtimes.cuda.driver_faults import DriverFaults
from lowerkit.runtimes.cuda.image import Function, ImageError, Launch, unpack
from lowerkit.runtimes.cuda.launch_arguments import arguments_of, shaped_maps
from lowerkit.runtimes.cuda.levels import choose_level
from lowerkit.runtimes.cuda.tensor_maps import ShapedMap
from lowerkit.runtimes.device import Bytes, Device
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.on_device.values import FollowsValues, NamedCall

_ALIGNMENT = 256
_MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class _Call:
    """One launch with the dims known."""

    kernel: Any
    blocks: int
    launch: Launch
    maps: tuple[ShapedMap, ...] = ()


@dataclass(frozen=True)
class _Shaped:
    """A function with the dims known: bytes of operands and results, places of temporaries, the launches."""

    buffers: tuple[int, ...]
    temporaries: tuple[tuple[int, int], ...]
    temporary_bytes: int
    calls: tuple[_Call, ...]


@dataclass
class _Program:
    """A loaded function, and what is known of it for the dims that it ran with."""

    function: Function
    kernels: dict[str, Any]
    shaped: dict[tuple[int, ...], _Shaped] = field(default_factory=dict[tuple[int, ...], _Shaped])


class CudaDevice(Device):
    """A card, by libcuda.

    Attributes:
        number: of the card; ``cuda:1`` is the second one.
    """

    numbered: ClassVar[bool] = True
    captures: ClassVar[bool] = True
    captures_copies: ClassVar[bool] = True

    def __init__(self, level: str = "", number: int = 0) -> None:
        """Opens a card.

        Raises:
            RuntimeFault: LK8020, there is no driver or no card, or the card is older than ``level``.
        """
        super().__init__(level)
        self.number = number
        self.driver = self._open_driver()
        self._blobs: dict[str, bytes] = {}
        self._kernels: dict[tuple[str, tuple[int, int]], Any] = {}
        self._temporaries = self._temporary_bytes = 0
        self._named: NamedCall | None = None

    def _open_driver(self) -> Driver:
        from lowerkit.runtimes.cuda.libcuda import LibCuda

        return LibCuda(self.level, number=self.number)

    def allocate(self, size: int) -> int:
        """See :meth:`Device.allocate`."""
        return self.driver.allocate(size)

    def free(self, address: int) -> None:
        """See :meth:`Device.free`."""
        self.driver.free(address)

    def copy_in(self, address: int, data: Bytes, queue: int) -> None:
        """See :meth:`Device.copy_in`."""
        if data.size:
            self.driver.write(address, data, queue)

    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        """See :meth:`Device.copy_out`."""
        if data.size:
            self.driver.read(data, address, queue)

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """See :meth:`Device.copy`."""
        self.driver.copy(target, source, size, queue)

    def load(self, code: Bytes) -> _Program:
        """See :meth:`Device.load`; the module of each kernel is loaded once.

        Raises:
            ImageError: the bytes are not what the target wrote.
            RuntimeFault: LK8020, the artifact has no code for the card.
        """
        read = unpack(code.tobytes(), self._blobs)
        self._blobs[read.digest] = read.blob
        bound = {each.level: any(place.kernel.bound for place in each.kernels.values()) for each in read.variants}
        level = choose_level(bound, self.driver.capability)
        variant = next(each for each in read.variants if each.level == level)
        kernels: dict[str, Any] = {}
        for name, place in variant.kernels.items():
            key = read.digest, place.ptx
            if key not in self._kernels:
                compiled = read.compiled(variant, name)
                module = self.driver.load(compiled.ptx, compiled.cubin, level)
                try:
                    self._kernels[key] = self.driver.kernel(module, name)
                except KeyError as error:
                    raise ImageError(f"there is no kernel {name!r} in its module") from error
            kernels[name] = self._kernels[key]
        return _Program(variant.function, kernels)

    def launch(self, program: _Program, addresses: Sequence[int], dims: Sequence[int], queue: int) -> None:
        """See :meth:`Device.launch`."""
        key = tuple(dims)
        if key not in program.shaped:
            program.shaped[key] = _shape(program, key, self.driver.processors)
        shaped = program.shaped[key]
        self._reserve(shaped.temporary_bytes)
        operands = len(program.function.operands)
        buffers = [
            LaunchBuffer(
                address,
                size,
                f"operand {number}" if number < operands else f"result {number - operands}",
                number >= operands,
                None if self._named is None else self._named.values[number],
            )
            for number, (address, size) in enumerate(zip(addresses, shaped.buffers, strict=True))
        ]
        buffers += [
            LaunchBuffer(self._temporaries + place, size, f"temporary {number}")
            for number, (place, size) in enumerate(shaped.temporaries)
        ]
        changed = program.function.in_place
        for number, buffer in enumerate(buffers[operands:]):
            if number not in changed:
                self.driver.forget(buffer.address, buffer.size)
        for call in shaped.calls:
            launch = call.launch
            arguments = arguments_of(launch, buffers, call.maps, key, self.driver.prepared)
            self.driver.launch(
                call.kernel, call.blocks, launch.block, launch.shared, arguments, queue, early=launch.early
            )

    def record(self, queue: int) -> Any:
        """See :meth:`Device.record`."""
        return self.driver.record(queue)

    def wait(self, event: Any, queue: int) -> None:
        """See :meth:`Device.wait`."""
        self.driver.wait(event, queue)

    def synchronize(self, queue: int) -> None:
        """See :meth:`Device.synchronize`."""
        self.driver.synchronize(queue)

    def begin_capture(self, queue: int) -> None:
        """See :meth:`Device.begin_capture`."""
        self.driver.begin_capture(queue)

    def end_capture(self, queue: int) -> Any:
        """See :meth:`Device.end_capture`."""
        return self.driver.end_capture(queue)

    def launch_graph(self, graph: Any, queue: int) -> None:
        """See :meth:`Device.launch_graph`."""
        self.driver.launch_graph(graph, queue)

    def destroy_graph(self, graph: Any) -> None:
        """See :meth:`Device.destroy_graph`."""
        self.driver.destroy_graph(graph)

    def error_text(self, error: BaseException) -> str:
        """See :meth:`Device.error_text`."""
        if isinstance(error, LowerkitError):
            at = f", at {error.op}" if error.op else ""
            return "; ".join((f"{error.message}{at}", *error.details))
        return str(error) if isinstance(error, ImageError) else super().error_text(error)

    def close(self) -> None:
        """See :meth:`Device.close`."""
        self.driver.close()

    def _reserve(self, size: int) -> None:
        """Makes the memory of temporaries at least ``size`` bytes."""
        if size <= self._temporary_bytes:
            return
        if self._temporary_bytes:
            self.driver.free(self._temporaries)
            self._temporary_bytes = 0
            self.epoch += 1
        self._temporaries, self._temporary_bytes = self.driver.allocate(size), size


class SimulatedCudaDevice(CudaDevice, FollowsValues):
    """The same without a card: every level runs on it, and it holds a session to its memory plan."""

    def __init__(self, level: str = "", number: int = 0, *, faults: DriverFaults | None = None) -> None:
        """Opens a device; ``faults`` are what goes wrong with it, for tests of what is done about it.

        Raises:
            RuntimeFault: LK8020, ``faults`` ask for that.
        """
        self._faults = faults
        super().__init__(level, number)

    def name_call(self, call: NamedCall | None) -> None:
        """See :meth:`FollowsValues.name_call`."""
        self._named = self.driver.named = call

    def _open_driver(self) -> Driver:
        from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver

        return SimulatedDriver(faults=self._faults)


def _shape(program: _Program, dims: tuple[int, ...], processors: int) -> _Shaped:
    """Returns a function with the dims known, for a card of so many SMs (0: not known).

    Raises:
        ImageError: it has another number of dims, needs more blocks than a grid can have, or a tensor map that reaches
            out of its buffer.
    """
    function = program.function
    if len(dims) != function.dims:
        raise ImageError(f"the function takes {function.dims} dims, {len(dims)} are given")
    sizes = [evaluate(size, {}, dims) for size in (*function.operands, *function.results)]
    temporaries = [evaluate(size, {}, dims) for size in function.temporaries]
    places: list[tuple[int, int]] = []
    end = 0
    for size in temporaries:
        places.append((end, size))
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    calls: list[_Call] = []
    for launch in function.launches:
        blocks = evaluate(launch.blocks, {}, dims)
        if blocks > 0:
            if blocks > _MOST_BLOCKS:
                raise ImageError(f"kernel {launch.kernel!r} needs {blocks} blocks, a grid has {_MOST_BLOCKS} at most")
            if launch.shared_out and processors > 0:
                blocks = min(blocks, processors)
            maps = shaped_maps(launch, dims, [*sizes, *temporaries])
            calls.append(_Call(program.kernels[launch.kernel], blocks, launch, maps))
    return _Shaped(tuple(sizes), tuple(places), end, tuple(calls))
