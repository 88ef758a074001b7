"""The 128 bytes that describe a tensor to the TMA unit, in a layout of our own: a card's is not published.

Two make them: :func:`encode_tiled`, which stands for cuTensorMapEncodeTiled, and ``tensormap.replace``, field by field.

Vocabulary
    box          the part of the tensor that one copy moves; sizes and strides go from the innermost dimension outward
    swizzle      how the 16-byte pieces of a box are spread in shared memory: in rows of ``span`` bytes, the number of a
                 piece in its row is changed by the number of the row among eight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.launch_buffer import LaunchTensorMap
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.tensor_maps import ELEMENT_BYTES, ELEMENTS_OF_PTX, LARGEST_BOX, MOST_DIMENSIONS, PIECE

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64
# Where each field lies, the bytes of one value, and how many there are.
FIELDS: Mapping[str, tuple[int, int, int]] = {
    "global_address": (0, 8, 1),
    "rank": (8, 4, 1),
    "box_dim": (16, 4, MOST_DIMENSIONS),
    "global_dim": (36, 4, MOST_DIMENSIONS),
    "global_stride": (56, 8, MOST_DIMENSIONS - 1),
    "element_stride": (88, 4, MOST_DIMENSIONS),
    "elemtype": (108, 4, 1),
    "interleave_layout": (112, 4, 1),
    "swizzle_mode": (116, 4, 1),
    "fill_mode": (120, 4, 1),
}
# The driver numbers these two otherwise; the others are the same there.
_FROM_DRIVER: Mapping[int, int] = {8: 9, 9: 10, 10: 8}
_SPANS: Mapping[int, int] = {0: PIECE, 1: 32, 2: 64, 3: 128}
_LARGEST_STRIDE = 1 << 40
_LARGEST_ADDRESS = 1 << 57


class BadTensorMap(Exception):
    """Bytes are no tensor map that is known. It never leaves the package: a KernelFault is made of it."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor and a box.

    Attributes:
        address: of its first element in global memory.
        element: the type, a value of :data:`ELEMENTS_OF_PTX`.
        sizes: of the tensor, in elements.
        strides: bytes from one index to the next; that of the innermost dimension is the element's size.
        box: its sizes, in elements.
        span: bytes of a row of the swizzle; 16 for none.
    """

    address: int
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    span: int

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.element]


def swizzled(addresses: Array, span: Array | int) -> Array:
    """Returns where the bytes at ``addresses`` (int64) of shared memory lie under a swizzle of ``span`` bytes."""
    return addresses ^ ((addresses >> 7) & (span // PIECE - 1)) << 4


def encode_tiled(
    address: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    element: int,
    swizzle: int = 0,
    interleave: int = 0,
    fill: int = 0,
    element_strides: Sequence[int] | None = None,
) -> bytes:
    """Returns a tensor map of 128 bytes; stands for cuTensorMapEncodeTiled, whose checks and numbers it has.

    Args:
        address: of the tensor in global memory.
        sizes: of the tensor in elements, innermost first; 1 to 5.
        strides: in bytes, of all dimensions but the innermost.
        box: sizes of the box in elements, innermost first.
        element: a CUtensorMapDataType.
        swizzle: a CUtensorMapSwizzle: 0 none, 1 to 3 for 32, 64 and 128 bytes.
        interleave: a CUtensorMapInterleave; 0, for none, is the only one known.
        fill: a CUtensorMapFloatOOBfill; 0, for zeros, is the only one known.
        element_strides: steps through the tensor; 1, the default, is the only one known.

    Raises:
        KernelFault: LK8017, the values fit no tensor map, or one that is not known.
    """
    raw = np.zeros(TENSOR_MAP_BYTES, np.uint8)
    rank = len(sizes)
    if not 0 < rank <= MOST_DIMENSIONS or len(box) != rank or len(strides) != rank - 1:
        raise KernelFault(f"a tensor map of {rank} sizes, {len(strides)} strides and a box of {len(box)}")

    def put(name: str, values: Sequence[int]) -> None:
        start, size, _ = FIELDS[name]
        for number, value in enumerate(values):
            if not 0 <= value < 1 << 8 * size:
                raise KernelFault(f"a tensor map with {name} {value}")
            at = start + size * number
            raw[at : at + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    put("global_address", [address])
    put("rank", [rank - 1])
    put("box_dim", box)
    put("global_dim", sizes)
    put("global_stride", strides)
    put("element_stride", [1] * rank if element_strides is None else element_strides)
    put("elemtype", [_FROM_DRIVER.get(element, element)])
    put("interleave_layout", [interleave])
    put("swizzle_mode", [swizzle])
    put("fill_mode", [fill])
    try:
        decode(raw)
    except BadTensorMap as error:
        raise KernelFault(f"no tensor map: {error}") from None
    return raw.tobytes()


def decode(raw: Array) -> TensorMap:
    """Returns the tensor map that 128 bytes (uint8) are.

    Raises:
        BadTensorMap: they are none, or one that is not known.
    """

    def values(name: str) -> list[int]:
        start, size, count = FIELDS[name]
        return [int(value) for value in raw[start : start + size * count].view(f"u{size}")]

    if not raw.any():
        raise BadTensorMap("a map of no tensor: one of its sizes is 0")
    rank = values("rank")[0] + 1
    if rank > MOST_DIMENSIONS:
        raise BadTensorMap(f"{rank} dimensions")
    element = ELEMENTS_OF_PTX.get(values("elemtype")[0])
    if element is None:
        raise BadTensorMap(f"element type {values('elemtype')[0]} is not known")
    span = _SPANS.get(values("swizzle_mode")[0])
    if span is None or values("interleave_layout")[0] or values("fill_mode")[0]:
        raise BadTensorMap("its swizzle, its interleaving or its fill is not known")
    if any(step != 1 for step in values("element_stride")[:rank]):
        raise BadTensorMap("element strides other than 1 are not known")
    size = ELEMENT_BYTES[element]
    strides = (size, *values("global_stride")[: rank - 1])
    sizes, box = values("global_dim")[:rank], values("box_dim")[:rank]
    address = values("global_address")[0]
    if address % PIECE or address >= _LARGEST_ADDRESS:
        raise BadTensorMap(f"address 0x{address:x} is not a multiple of {PIECE}")
    if any(stride % PIECE or stride >= _LARGEST_STRIDE for stride in strides[1:]):
        raise BadTensorMap(f"strides {strides[1:]} are not multiples of {PIECE} below 2^40")
    if any(not 0 < extent <= LARGEST_BOX for extent in box) or 0 in sizes:
        raise BadTensorMap(f"a box of {tuple(box)} in a tensor of {tuple(sizes)}")
    row = box[0] * size
    if row % PIECE or (span > PIECE and row != span):
        raise BadTensorMap(f"a box of {row} bytes in its innermost dimension with a swizzle of {span} bytes")
    return TensorMap(address, element, tuple(sizes), strides, tuple(box), span)


def encoded(described: LaunchTensorMap, address: int) -> bytes:
    """Returns a tensor map with its buffer at ``address``, which the kernel sees in that launch alone.

    Raises:
        KernelFault: LK8017, the values fit no tensor map.
    """
    if 0 in described.sizes:
        return bytes(TENSOR_MAP_BYTES)
    try:
        return encode_tiled(
            address + described.offset,
            described.sizes,
            described.strides,
            described.box,
            element=described.element,
            swizzle=described.swizzle,
        )
    except KernelFault as fault:
        raise KernelFault(f"{described}: {fault.message}") from None
