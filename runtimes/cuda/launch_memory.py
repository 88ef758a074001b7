"""The memory of the host that a launch by libcuda reads, by ctypes: arguments, tensor maps, attributes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_int, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from lowerkit.runtimes.cuda.driver_errors import CudaError
from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap

TENSOR_MAP_BYTES = 128
ENCODE = "cuTensorMapEncodeTiled"
TENSOR_MAP_ALIGNMENT = 128  # of a CUtensorMap, as its header has it
SERIALIZED_BY_PROGRAM = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_NO_INTERLEAVE, L2_128_BYTES, _ZEROS_BEYOND = 0, 2, 0  # interleave, promotion to L2, fill

Argument = LaunchBuffer | LaunchTensorMap | int


@dataclass(frozen=True)
class EncodedTensorMap(LaunchTensorMap):
    """A tensor map with its 128 bytes, which lie at ``place``."""

    memory: Any = field(default=None, compare=False, repr=False)
    place: int = field(default=0, compare=False)


def encoded(call: Callable[..., None], described: LaunchTensorMap) -> EncodedTensorMap:
    """Returns a tensor map as the driver encodes it.

    Args:
        call: calls a function of the driver by its name.
        described: the map.

    Raises:
        RuntimeFault: LK8020, the driver knows no tensor maps.
        CudaError: it takes none of this form; says of which.
    """
    memory = (c_char * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
    place = -(-ctypes.addressof(memory) // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT
    rank = len(described.sizes)
    if 0 not in described.sizes:
        try:
            call(
                ENCODE, c_void_p(place), c_int(described.element), c_uint32(rank),
                c_void_p(described.buffer.address + described.offset), (c_uint64 * rank)(*described.sizes),
                (c_uint64 * max(rank - 1, 1))(*described.strides), (c_uint32 * rank)(*described.box),
                (c_uint32 * rank)(*[1] * rank), c_int(_NO_INTERLEAVE), c_int(described.swizzle), c_int(L2_128_BYTES),
                c_int(_ZEROS_BEYOND),
            )  # fmt: skip
        except CudaError as error:
            at = f"0x{described.buffer.address:x}"
            raise CudaError(ENCODE, error.number, f"{error}; {described}, a buffer at {at}") from error
    values = {each.name: getattr(described, each.name) for each in fields(LaunchTensorMap)}
    return EncodedTensorMap(**values, memory=memory, place=place)


class _Value(ctypes.Union):
    """A CUlaunchAttributeValue; ``number`` is what the one attribute that is used here has."""

    _fields_: ClassVar = [("number", c_int), ("words", c_uint64 * 8)]


class LaunchAttribute(ctypes.Structure):
    """A CUlaunchAttribute."""

    _fields_: ClassVar = [("id", c_int), ("pad", c_char * 4), ("value", _Value)]


class LaunchConfig(ctypes.Structure):
    """A CUlaunchConfig: the grid, a block, its shared memory, the stream, attributes."""

    _fields_: ClassVar = [
        *((f"{what}_{axis}", c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", c_uint),
    ]


class ArgumentMemory:
    """Arguments where a launch reads them; it has copied them when it returns.

    Attributes:
        places: an array of pointers, one to each argument.
    """

    def __init__(self, arguments: Sequence[Argument], call: Callable[..., None]) -> None:
        """``call`` is that of :func:`encoded`, for tensor maps that are not ready."""
        count = max(len(arguments), 1)
        self._values = (c_uint64 * count)()  # a parameter of fewer bits is the first bytes of its value
        self._maps: list[EncodedTensorMap] = []
        self.places = (c_void_p * count)()
        start = ctypes.addressof(self._values)
        for number, each in enumerate(arguments):
            self.places[number] = start + 8 * number
            if isinstance(each, LaunchTensorMap):
                ready = each if isinstance(each, EncodedTensorMap) else encoded(call, each)
                self._maps.append(ready)
                self.places[number] = ready.place
            else:
                value = each.address if isinstance(each, LaunchBuffer) else each
                self._values[number] = value & (1 << 64) - 1


def launch(
    call: Callable[..., None], kernel: int, grid: tuple[int, int, int], stream: c_void_p, arguments: ArgumentMemory, *,
    early: bool,
) -> None:  # fmt: skip
    """Puts a launch into a stream.

    Args:
        call: that of :func:`encoded`.
        kernel: its handle.
        grid: blocks, threads of a block, bytes of dynamic shared memory of a block.
        stream: its handle.
        arguments: of the kernel.
        early: whether it may start before the launch in front of it ends, which its kernel waits for by itself.
    """
    blocks, threads, shared = grid
    if not early:
        one = c_uint(1)
        call(
            "cuLaunchKernel", c_void_p(kernel), c_uint(blocks), one, one, c_uint(threads), one, one, c_uint(shared),
            stream, arguments.places, None,
        )  # fmt: skip
        return
    attribute = LaunchAttribute(SERIALIZED_BY_PROGRAM)
    attribute.value.number = 1
    config = LaunchConfig(blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.pointer(attribute), 1)
    call("cuLaunchKernelEx", byref(config), c_void_p(kernel), arguments.places, None)
