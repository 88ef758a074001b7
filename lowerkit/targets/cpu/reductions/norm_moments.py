"""Mean and scale of a set of numbers: the statistics of layer norm, group norm and RMS norm.

Two walks: the mean first, then the mean of the distances d = x - mean and of their squares. Rounding the mean to f32
leaves an offset, the mean of d; the variance is ``mean(d^2) - offset^2`` and the centred value ``d - offset``. A large
mean therefore costs no digits: x - mean is exact for x near it, and the offset is known to full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.text.kernel_text import Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["Moments", "Walk", "centered_moments", "root_mean_square"]

# Walks all numbers, gives each vector (with its mask) to the callable, and returns the lane sums of what that returns.
Walk = Callable[[Sequence[Value], Callable[[Value, Value | None], Sequence[Value]]], list[Value]]


@dataclass(frozen=True)
class Moments:
    """Splat over the lanes of one set of numbers: ``normalize(x) = (x - mean - offset) * factor``.

    Mean and offset are None for RMS norm.
    """

    mean: Value | None
    offset: Value | None
    factor: Value

    def normalize(self, text: KernelText, value: Value) -> Value:
        """Returns the normalized value."""
        if self.mean is not None:
            value = text.sub(value, self.mean)
        if self.offset is not None:
            value = text.sub(value, self.offset)
        return text.mul(value, self.factor)


def centered_moments(
    text: KernelText, walk: Walk, count: Index, compute: str, lanes: int, epsilon: float, together: int = 0
) -> Moments:
    """Returns the moments of layer norm and group norm over ``count`` numbers.

    Args:
        together: lanes side by side that hold numbers of one set, a power of two, while others hold sets of their own;
            0 where all lanes hold one set.
    """
    zero = text.constant(0.0, compute, lanes)
    number = text.cast("arith.sitofp", text.as_value(count), compute)
    number = text.broadcast(number, lanes) if together else number

    def fold(partial: Value) -> Value:
        return _fold_neighbours(text, partial, together) if together else text.fold_lanes("add", partial)

    total = walk([zero], lambda value, mask: [value])[0]
    mean = _splat(text, text.div(fold(total), number), lanes)

    def terms(value: Value, mask: Value | None) -> list[Value]:
        distance = text.sub(value, mean)
        if mask is not None:
            distance = text.select(mask, distance, zero)
        return [distance, text.mul(distance, distance)]

    sums = walk([zero, zero], terms)
    offset, squares = (text.div(fold(partial), number) for partial in sums)
    variance = text.sub(squares, text.mul(offset, offset))
    variance = text.combine("max", variance, text.like(0.0, variance))
    return Moments(mean, _splat(text, offset, lanes), _factor(text, variance, epsilon, lanes))


def _splat(text: KernelText, value: Value, lanes: int) -> Value:
    return value if value.lanes == lanes else text.broadcast(value, lanes)


def _fold_neighbours(text: KernelText, value: Value, together: int) -> Value:
    """In each lane the sum of the lanes that belong together."""
    distance = 1
    while distance < together:
        value = text.add(value, text.shuffle(value, value, [lane ^ distance for lane in range(value.lanes)]))
        distance *= 2
    return value


def root_mean_square(text: KernelText, walk: Walk, count: Index, compute: str, lanes: int, epsilon: float) -> Moments:
    """Returns the factor of RMS norm over ``count`` numbers."""
    zero = text.constant(0.0, compute, lanes)
    number = text.cast("arith.sitofp", text.as_value(count), compute)
    squares = walk([zero], lambda value, mask: [text.mul(value, value)])[0]
    mean = text.div(text.fold_lanes("add", squares), number)
    return Moments(None, None, _factor(text, mean, epsilon, lanes))


def _factor(text: KernelText, variance: Value, epsilon: float, lanes: int) -> Value:
    shifted = text.add(variance, text.like(epsilon, variance))
    inverse = text.div(text.like(1.0, shifted), text.unary("math.sqrt", shifted))
    return _splat(text, inverse, lanes)
