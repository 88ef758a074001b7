"""What a launch is told of each buffer: apart from the simulator, so that a card's driver does not load that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowerkit.runtimes.on_device.values import NamedValue


@dataclass(frozen=True)
class StaleBytes:
    """Bytes ``start`` to ``end`` of a buffer that hold another value than the buffer is; ``words`` say which."""

    start: int
    end: int
    words: str


@dataclass(frozen=True)
class LaunchBuffer:
    """An argument of a launch: ``size`` bytes at ``address``, which is all that the kernel may touch there.

    Attributes:
        name: what messages call it.
        writable: whether the kernel may write it.
        value: which value of a program it is, where that is known.
        stale: what of it no kernel may read.
    """

    address: int
    size: int
    name: str
    writable: bool = True
    value: NamedValue | None = None
    stale: tuple[StaleBytes, ...] = ()


@dataclass(frozen=True)
class LaunchTensorMap:
    """An argument of a launch: the tensor map of a buffer, 128 bytes that describe a tensor in it to the TMA unit.

    Where a size is 0 there is no tensor: the argument is 128 zeros, which a kernel must not use.

    Attributes:
        buffer: which the tensor lies in.
        sizes: of the tensor in elements, innermost first; 1 to 5.
        strides: in bytes, of all dimensions but the innermost.
        box: sizes of what one copy moves, in elements, innermost first.
        element: a CUtensorMapDataType.
        swizzle: a CUtensorMapSwizzle: 0 none, 1 to 3 for rows of 32, 64 and 128 bytes.
        offset: of the first element in the buffer, in bytes.
    """

    buffer: LaunchBuffer
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element: int
    swizzle: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return (
            f"the tensor map of {self.buffer.name}: sizes {self.sizes}, strides {self.strides} bytes, box {self.box}, "
            f"element type {self.element}, swizzle {self.swizzle}, from byte {self.offset}"
        )
