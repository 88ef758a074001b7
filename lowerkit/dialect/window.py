"""What convolutions and pools share: a window that slides over the spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.dialect.shapes import DYNAMIC, fail, is_dynamic


@dataclass(frozen=True)
class Window:
    """A window that slides along one dim; ``ceil`` takes a last one that reaches over the end.

    The extent of the dim is a number or the symbolic one of a trace, whose comparison notes a condition on the model.
    """

    kernel: int
    stride: int
    low: int
    high: int
    dilation: int = 1
    ceil: bool = False

    @property
    def span(self) -> int:
        """The elements from the first tap to the last."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: Any) -> Any:
        """Returns how many windows there are on ``size`` elements; less than 1 where none fits."""
        free = size + self.low + self.high - self.span
        if not self.ceil:
            return free // self.stride + 1
        count = (free + self.stride - 1) // self.stride + 1
        # PyTorch and ONNX Runtime drop a last window that would start in the high padding.
        return count - 1 if (count - 1) * self.stride >= size + self.low else count

    def high_padding(self, size: int) -> int:
        """Returns the padding at the high end with which windows without ``ceil`` are as many."""
        if not self.ceil:
            return self.high
        return max(self.high, (self.count(size) - 1) * self.stride + self.span - size - self.low)


def spatial_axes(rank: int, channels_last: bool) -> list[int]:
    """Returns the spatial dimensions of ``NC...`` or ``N...C``."""
    return list(range(1, rank - 1)) if channels_last else list(range(2, rank))


def channel_axis(rank: int, channels_last: bool) -> int:
    """Returns the channel dimension of ``NC...`` or ``N...C``."""
    return rank - 1 if channels_last else 1


def spatial_sizes(shape: Sequence[int], channels_last: bool) -> list[int]:
    """Returns the spatial part of a shape."""
    return [shape[axis] for axis in spatial_axes(len(shape), channels_last)]


def with_layout(batch: int, channels: int, spatial: Sequence[int], channels_last: bool) -> list[int]:
    """Returns the shape with its parts in the order of the layout."""
    return [batch, *spatial, channels] if channels_last else [batch, channels, *spatial]


def padding_pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    """Returns flat ``low0, high0, low1, high1, ...`` as (low, high) for each spatial dimension."""
    return list(zip(padding[0::2], padding[1::2], strict=True))


def expand_padding(padding: int | Sequence[int], count: int) -> list[int]:
    """Returns flat low/high padding: an int pads every side, ``count`` values pad both sides of their dimension."""
    if isinstance(padding, int):
        return [padding] * (2 * count)
    values = list(padding)
    if len(values) == count and count != 2 * count:
        return [value for value in values for _ in (0, 1)]
    return values


def check_window(
    count: int, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> None:
    """Fails unless the window attributes describe ``count`` spatial dimensions with sensible values."""
    for name, values, wanted in (
        ("kernel", kernel, count),
        ("strides", strides, count),
        ("padding", padding, 2 * count),
        ("dilation", dilation, count),
    ):
        if len(values) != wanted:
            fail(f"{name} must have {wanted} values for {count} spatial dimensions, found {list(values)}")
    for name, values in (("kernel", kernel), ("strides", strides), ("dilation", dilation)):
        if any(value < 1 and not is_dynamic(value) for value in values):
            fail(f"{name} must be positive, found {list(values)}")
    if any(value < 0 for value in padding):
        fail(f"padding must not be negative, found {list(padding)}", hint="crop with tensor.extract_slice first")


def window_output(size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """Returns the number of window positions along one dimension, dynamic if the size or the kernel is.

    ``floor((size + low + high - dilation * (kernel - 1) - 1) / stride) + 1``
    """
    if is_dynamic(size) or is_dynamic(kernel):
        return DYNAMIC
    window = Window(kernel, stride, *padding, dilation)
    if window.count(size) < 1:
        fail(f"the window spans {window.span} positions, but the padded dimension has only {size + sum(padding)}")
    return window.count(size)


def window_outputs(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Returns :func:`window_output` for each spatial dimension."""
    return [
        window_output(size, k, stride, pair, spread)
        for size, k, stride, pair, spread in zip(sizes, kernel, strides, padding_pairs(padding), dilation, strict=True)
    ]
