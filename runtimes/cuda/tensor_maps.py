"""Tensor maps as parameters of kernels: how an image describes them, and what they are once the dims are known.

Vocabulary
    tensor map   128 bytes that describe a tensor and a box to the TMA unit, which copies boxes by itself
    box          the part of the tensor that one copy moves
    span         bytes of a row of shared memory within which the 16-byte pieces of a box are swizzled

Sizes and strides go from the innermost dimension outward, as in cuda.h. A kernel in Triton takes for each descriptor
the 128 bytes, then its sizes (32 bits each), then its strides in elements (64 bits each), both from the outermost
inward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec.structs import force_setattr

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.expressions import Expr, evaluate, normalize, symbols

MOST_DIMENSIONS = 5
LARGEST_BOX = 256
PIECE = 16  # bytes: addresses, strides and rows of a box are multiples
ELEMENT_BYTES: Mapping[str, int] = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2,
}  # fmt: skip
"""What rounds on its way (tf32) and packed types are not known."""
ELEMENT_NUMBERS: Mapping[str, int] = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""Each as a CUtensorMapDataType."""
ELEMENTS_OF_PTX: Mapping[int, str] = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 9: "f64", 10: "bf16",
}  # fmt: skip
"""Each by the number that ``tensormap.replace`` takes, and compilers say: three are not those of the driver."""
SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}
"""A span as a CUtensorMapSwizzle; 0 for none."""
_MOST_MAPS = 16
_MOST_EXTENT = (1 << 31) - 1
_MOST_KEPT = 64

Prepare = Callable[[LaunchTensorMap], LaunchTensorMap]


class BadMap(ValueError):
    """A tensor map that no kernel can take; who reads an image makes an ImageError of it."""


class TensorMap(msgspec.Struct, frozen=True):
    """A tensor map as a parameter.

    Attributes:
        buffer: number of the buffer that the tensor lies in; a kernel that stores through the map writes it.
        sizes: of the tensor in elements; expressions over the dims.
        strides: in bytes, of all dimensions but the innermost, whose elements lie side by side; expressions likewise.
        offset: of the first element in the buffer, in bytes; an expression likewise.
        element: a key of :data:`ELEMENT_BYTES`; with ``box`` and ``span`` it is what the compiler of the kernel says,
            and empty until then.
        box: in elements.
        span: of the swizzle; 0 for none.
    """

    buffer: int
    sizes: list[Expr]
    strides: list[Expr] = []
    offset: Expr = 0
    element: str = ""
    box: list[int] = []
    span: int = 0

    def __post_init__(self) -> None:
        for name in ("sizes", "strides"):
            force_setattr(self, name, [normalize(entry) for entry in getattr(self, name)])
        force_setattr(self, "offset", normalize(self.offset))


class MapForm(msgspec.Struct, frozen=True):
    """What the compiler of a kernel says of one of its tensor maps; see :class:`TensorMap`."""

    element: str
    box: list[int]
    span: int


def check_maps(maps: Sequence[TensorMap], buffers: int) -> None:
    """Checks the maps of a launch whose function has so many buffers.

    Raises:
        BadMap: one cannot be.
    """
    if len(maps) > _MOST_MAPS:
        raise BadMap(f"{len(maps)} tensor maps")
    for each in maps:
        rank = len(each.sizes)
        if not 0 <= each.buffer < buffers:
            raise BadMap(f"a tensor map of buffer {each.buffer} of {buffers}")
        if not 0 < rank <= MOST_DIMENSIONS or len(each.strides) != rank - 1 or len(each.box) != rank:
            raise BadMap(f"a tensor map of {rank} sizes, {len(each.strides)} strides and a box of {len(each.box)}")
        if each.element not in ELEMENT_BYTES or each.span not in SWIZZLES:
            raise BadMap(f"a tensor map of elements {each.element!r} with a swizzle of {each.span} bytes")
        row = each.box[0] * ELEMENT_BYTES[each.element]
        if any(not 0 < extent <= LARGEST_BOX for extent in each.box) or row % PIECE or row > (each.span or row):
            raise BadMap(f"a tensor map with a box of {each.box} and a swizzle of {each.span} bytes")
        if any(True for part in (*each.sizes, *each.strides, each.offset) for _ in symbols(part)):
            raise BadMap("a tensor map with a size that is an expression over what is no dim")


@dataclass(frozen=True)
class ShapedMap:
    """A tensor map with the dims known.

    Attributes:
        buffer: its number.
        described: the map for a buffer at an address.
        numbers: what the kernel takes behind it: sizes, then strides in elements, from the outermost inward.
        kept: what a driver made of it, by the address of the buffer: launches repeat.
    """

    buffer: int
    described: Callable[[LaunchBuffer], LaunchTensorMap]
    numbers: tuple[int, ...]
    kept: dict[int, LaunchTensorMap] = field(default_factory=dict[int, LaunchTensorMap], compare=False)

    def at(self, buffer: LaunchBuffer, prepare: Prepare) -> LaunchTensorMap:
        """Returns the map of a buffer, as ``prepare`` of one driver makes it."""
        if buffer.address not in self.kept:
            if len(self.kept) >= _MOST_KEPT:
                self.kept.clear()
            self.kept[buffer.address] = prepare(self.described(buffer))
        kept = self.kept[buffer.address]
        return kept if kept.buffer == buffer else replace(kept, buffer=buffer)  # another value may lie there by now


def shape_map(each: TensorMap, dims: Sequence[int], bytes_of: Sequence[int]) -> ShapedMap:
    """Returns a map with the dims known.

    Args:
        each: one that :func:`check_maps` takes.
        dims: of the function.
        bytes_of: each buffer.

    Raises:
        BadMap: it reaches out of its buffer, or no kernel can be told its sizes.
    """
    sizes = tuple(evaluate(size, {}, dims) for size in each.sizes)
    strides = tuple(evaluate(stride, {}, dims) for stride in each.strides)
    offset, width = evaluate(each.offset, {}, dims), ELEMENT_BYTES[each.element]
    if any(not 0 <= size <= _MOST_EXTENT for size in sizes) or min(offset, *strides, 0) < 0:
        raise BadMap(f"a tensor map of sizes {sizes} and strides {strides} bytes from byte {offset}")
    if any(stride % width for stride in strides):
        raise BadMap(f"a tensor map with strides {strides} bytes, which are no whole numbers of {width} bytes")
    end = offset + width + sum((size - 1) * step for size, step in zip(sizes, (width, *strides), strict=True))
    if 0 not in sizes and end > bytes_of[each.buffer]:
        raise BadMap(f"a tensor map that reaches to byte {end} of buffer {each.buffer}, of {bytes_of[each.buffer]}")
    box, element, swizzle = tuple(each.box), ELEMENT_NUMBERS[each.element], SWIZZLES[each.span]

    def described(buffer: LaunchBuffer) -> LaunchTensorMap:
        return LaunchTensorMap(buffer, sizes, strides, box, element, swizzle, offset)

    steps = tuple(stride // width for stride in strides)
    return ShapedMap(each.buffer, described, (*sizes[::-1], *steps[::-1], 1))
