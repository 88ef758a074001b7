"""``grid_sample`` of images and volumes: weighted sums of elements that are looked up.

Vocabulary
    place    where in the image a sample stands along one dim, in elements
    last     the place of the last element along it: a number or, of an open extent, a tensor of rank 0
    tap      an element that a sample is made of: its place, its weight (None for one) and whether it is inside of the
             image (None where it always is)
    row      the channels of one element: the taps of all dims together name one, which is looked up whole

What is outside adds nothing, whatever is read in its stead. Places are computed as PyTorch's CPU kernels do: that of
images takes vectors and that of volumes does not, so that they differ where a coordinate is not finite. In images NaN
is the first element, a reflected infinity is it too, and beside zeros and of cubics the weights are NaN; in volumes
both are the last element, and outside beside zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.size_tensors import Extent, number, positions, widened
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1
"""PyTorch's numbers; 2 is a cubic, and a reflection."""

_SHARPNESS = -0.75

_Number = Any
"""A number, or a tensor of rank 0."""

_Some = TypeVar("_Some")


@dataclass(frozen=True)
class _Tap:
    place: Tensor
    weight: Tensor | None = None
    inside: Tensor | None = None


@dataclass(frozen=True)
class _Sampling:
    mode: int
    padding: int
    align_corners: bool
    is_volume: bool

    def taps(self, coordinate: Tensor, extent: Extent) -> list[_Tap]:
        """The taps along one dim, whose ends have the coordinates -1 and 1."""
        last = _size(extent, coordinate.dtype) - 1
        if self.align_corners:
            place = (coordinate + 1) * (last / 2)
        else:
            place = (coordinate + 1) * ((last + 1) / 2) - 0.5
        if self.mode == _NEAREST:
            return [self._tap(torch.round(self._padded(place, last)), None, last)]
        if self.mode == _BILINEAR:
            place = self._padded(place, last)
            floor = torch.floor(place)
            part = place - floor
            return [self._tap(floor, 1 - part, last), self._tap(floor + 1, part, last, is_second=True)]
        floor = torch.floor(place)
        part = place - floor
        places = [self._padded(each, last) for each in (floor - 1, floor, floor + 1, floor + 2)]
        weights = [_far(part + 1), _near(part), _near(1 - part), _far(2 - part)]
        return [self._tap(each, weight, last) for each, weight in zip(places, weights, strict=True)]

    def _padded(self, place: Tensor, last: _Number) -> Tensor:
        """Brings places that are outside back, except beside zeros."""
        if self.padding == _ZEROS:
            return place
        if self.padding != _BORDER:
            low, span = (0.0, last) if self.align_corners else (-0.5, last + 1)
            fold = _folded_exactly if self.is_volume else _folded
            place = fold(torch.abs(place - low), span) + low
        # NaN is not within either bound, and ends at the one that comes first.
        if self.is_volume:
            return _at_least_0(_at_most(place, last))
        return _at_most(_at_least_0(place), last)

    def _tap(self, place: Tensor, weight: Tensor | None, last: _Number, *, is_second: bool = False) -> _Tap:
        inside = None
        if self.padding == _ZEROS:
            inside = (place >= 0) & (place <= last)
        elif is_second:
            # A place at the border has its second tap, of weight 0, outside.
            inside = place <= last
        if inside is not None:
            place = torch.where(inside, place, 0.0)
        return _Tap(place.to(torch.int64), weight, inside)


def _at_least_0(place: Tensor) -> Tensor:
    return torch.where(place > 0, place, 0.0)


def _at_most(place: Tensor, last: _Number) -> Tensor:
    return torch.where(place < last, place, last)


def _folded(distance: Tensor, span: _Number) -> Tensor:
    """Reflects at 0 and ``span``; a span of 0 makes NaN, which the only element takes."""
    rest = distance - torch.trunc(distance / (2 * span)) * (2 * span)
    return torch.minimum(rest, 2 * span - rest)


def _folded_exactly(distance: Tensor, span: _Number) -> Tensor:
    """The same by remainders, which far away are not rounded."""
    rest = torch.fmod(distance, span)
    is_odd = torch.fmod(torch.floor(distance / span), 2.0) != 0
    return torch.where(is_odd, span - rest, rest)


def _near(distance: Tensor) -> Tensor:
    """The weight in a cubic of what is 0 to 1 away."""
    return ((_SHARPNESS + 2) * distance - (_SHARPNESS + 3)) * distance * distance + 1


def _far(distance: Tensor) -> Tensor:
    """Of what is 1 to 2 away."""
    return ((_SHARPNESS * distance - 5 * _SHARPNESS) * distance + 8 * _SHARPNESS) * distance - 4 * _SHARPNESS


def _size(extent: Extent, dtype: torch.dtype) -> _Number:
    return int(extent) if is_static(extent) else number(extent, dtype)


def _joined(outer: _Tap, inner: _Tap, extent: Extent) -> _Tap:
    """One tap of two neighbouring dims."""
    return _Tap(
        outer.place * _size(extent, torch.int64) + inner.place,
        _both(outer.weight, inner.weight, torch.mul),
        _both(outer.inside, inner.inside, torch.logical_and),
    )


def _both(left: _Some | None, right: _Some | None, join: Callable[[_Some, _Some], _Some]) -> _Some | None:
    if left is None or right is None:
        return right if left is None else left
    return join(left, right)


def _term(rows: Tensor, tap: _Tap, is_volume: bool) -> Tensor:
    value = rows.index_select(0, tap.place.flatten())
    weight, inside = (None if each is None else each.flatten()[:, None] for each in (tap.weight, tap.inside))
    if weight is not None:
        value = widened(value)
    # Beside zeros an image's weights that are NaN stay, and a volume's do not.
    if weight is not None and is_volume:
        value = value * weight
    if inside is not None:
        value = torch.where(inside, value, 0.0)
    return value * weight if weight is not None and not is_volume else value


def _grid_sampler(value: Tensor, grid: Tensor, mode: int = 0, padding: int = 0, align_corners: bool = False) -> Tensor:
    batch, channels, *extents = value.shape
    sampling = _Sampling(mode, padding, align_corners, is_volume=len(extents) == 3)
    # The last coordinate belongs to the first of the image's dims.
    coordinates = reversed(widened(grid).flatten(1, -2).unbind(-1))
    taps = [_Tap(positions(batch)[:, None])]
    for coordinate, extent in zip(coordinates, extents, strict=True):
        along = sampling.taps(coordinate, extent)
        taps = [_joined(outer, inner, extent) for outer in taps for inner in along]
    rows = value.movedim(1, -1).flatten(0, -2)
    total = _term(rows, taps[0], sampling.is_volume)
    for tap in taps[1:]:
        total = total + _term(rows, tap, sampling.is_volume)
    return total.to(value.dtype).reshape(batch, *grid.shape[1:-1], channels).movedim(-1, 1).contiguous()


TABLE: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: _grid_sampler,
    aten.grid_sampler_3d.default: _grid_sampler,
}
"""By overload."""
