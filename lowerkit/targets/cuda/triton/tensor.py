"""What a value inside a region may be to a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.plan import KernelExpr, expression, product


def row_major(sizes: Sequence[KernelExpr]) -> tuple[KernelExpr, ...]:
    """Returns the strides of a contiguous tensor."""
    strides: list[KernelExpr] = []
    stride: KernelExpr = 1
    for size in reversed(sizes):
        strides.append(stride)
        stride = expression("mul", stride, size)
    return tuple(reversed(strides))


def element_bytes(element: str) -> int:
    """Returns the bytes of an element in memory."""
    return 1 if element == "i1" else int("".join(filter(str.isdigit, element))) // 8


@dataclass(frozen=True)
class Tensor:
    """Elements of a buffer: the number of its pointer, the element type in MLIR's words, sizes, strides, offset."""

    pointer: int
    element: str
    sizes: tuple[KernelExpr, ...]
    strides: tuple[KernelExpr, ...]
    offset: KernelExpr = 0

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one behind the other."""
        return self.strides == row_major(self.sizes)

    @property
    def bytes(self) -> KernelExpr:
        """Bytes of all elements."""
        return expression("mul", product(self.sizes), element_bytes(self.element))


@dataclass(frozen=True)
class Splat:
    """A tensor with one number in every place, or a scalar."""

    number: float | int
    element: str


@dataclass(frozen=True)
class AnchorResult:
    """The result of the anchor, seen with its own sizes."""

    sizes: tuple[KernelExpr, ...]


@dataclass(frozen=True)
class Unset:
    """A ``tensor.empty``: nobody reads it."""


Source = Tensor | Splat | AnchorResult | Unset
