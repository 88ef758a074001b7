"""``lk.resize``: each element of the result from its neighbours in the input, channels as vectors.

Where an element lies in the input follows from its pixel alone: positions, neighbours and their weights are computed
once for each pixel of a tile (f32, f64 of f64), step by step as the op says, since the floor of a position decides
what is read. The time is that of memory; neighbours of a pixel come from L1 but for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lowerkit.dialect.reference.resize import CUBIC_COEFFICIENT, source_step
from lowerkit.targets.cuda.families.windows.sliding import Window, read_slide, scaled
from lowerkit.targets.cuda.families.windows.window_tile import WindowTile, open_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES, constant, converted
from lowerkit.targets.cuda.triton.tensors import Frame, load, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import Refusal, product, total
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16", "f64")
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}

_Tap = tuple[str, str]
"""A position of the input, within it, and its weight, ``""`` for one; both broadcast to the tile."""


@dataclass(frozen=True)
class _Way:
    """How a resize samples: see :class:`~lowerkit.dialect.ops.resize.ResizeOp`; ``real`` is what positions are."""

    mode: str
    coordinates: str
    rounding: str
    real: str


class ResizeFamily(KernelFamily):
    """``lk.resize`` in every mode, channels last or second, of floats; nearest of every type."""

    name: ClassVar[str] = "resize"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        view = region.anchor
        if view is None or view.operation.name != "lk.resize":
            return Refusal("the anchor is not lk.resize")
        anchor, frame = view.operation, Frame(region)
        parameters: dict[str, Any] = view.parameters()  # type: ignore[attr-defined]
        count = len(parameters["size"])
        ones = [1] * count
        layout = {"channels_last": parameters["channels_last"], "strides": ones, "dilation": ones}
        slide = read_slide(frame, anchor, {**layout, "padding": [0, 0] * count}, ones)
        if isinstance(slide, Refusal):
            return slide
        element, mode = slide.x.element, str(parameters["mode"])
        if mode != "nearest" and element not in _FLOATS:
            return Refusal(f"{mode} of {element}: one of {', '.join(_FLOATS)} is taken")
        epilogue = read_epilogue(region, frame, anchor)
        if isinstance(epilogue, Refusal):
            return epilogue
        way = _Way(
            mode, parameters["coordinates"], parameters["nearest_rounding"], "f64" if element == "f64" else "f32"
        )
        writer = KernelWriter()
        # The starts of the tile are positions of the result: no window moves over the input.
        windows = tuple(replace(window, step=0) for window in slide.windows)
        tile = open_tile(writer, frame, replace(slide, windows=windows))
        scales = parameters["scales"] or [None] * count
        taps = [
            _taps(writer, way, window, start, scale)
            for window, start, scale in zip(slide.windows, tile.starts, scales, strict=True)
        ]
        compute = element if mode == "nearest" else way.real
        value = _Sampler(writer, frame, tile, slide.windows, compute).sampled(taps, [])
        epilogue.write(writer, writer.let(converted(value, compute, element), "value"), tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps)
        results = product([*slide.pixel_sizes, slide.channels])
        flops = 0 if mode == "nearest" else product([results, 2 * _TAPS[mode] ** count])
        launch = PlannedLaunch(
            kernel,
            range(len(frame.buffers)),
            tile.blocks,
            flops,
            total([frame.buffers[number].bytes for number in sorted({slide.x.pointer} | epilogue.read_operands())]),
            total([each.bytes for each in frame.results]),
        )
        return planned_region(frame, [launch], note=f"{mode}, {tile.note}")


@dataclass(frozen=True)
class _Sampler:
    """Writes the weighted sum over all combinations of taps, one dimension after the other."""

    writer: KernelWriter
    frame: Frame
    tile: WindowTile
    windows: Sequence[Window]
    compute: str

    def sampled(self, taps: Sequence[Sequence[_Tap]], places: list[str]) -> str:
        """Returns the sum over ``taps`` of the dimensions that are left; ``places`` are those of the ones before."""
        if not taps:
            x = self.tile.slide.x
            at = self.writer.let(" + ".join([self.tile.origin, *places]), "at")
            return converted(load(self.writer, x, at, self.tile.mask), x.element, self.compute)
        window = self.windows[len(self.windows) - len(taps)]
        sums = ""
        for position, weight in taps[0]:
            place = scaled(f"{position}.to(tl.int64)" if self.frame.wide else position, window.step)
            item = self.writer.let(self.sampled(taps[1:], [*places, place]), "x")
            if weight:
                item = self.writer.let(f"{item} * {weight}", "x")
            sums = self.writer.let(f"{sums} + {item}", "sums") if sums else item
        return sums


def _taps(writer: KernelWriter, way: _Way, window: Window, place: str, scale: float | None) -> list[_Tap]:
    """Writes the taps of the positions ``place`` of the result along a window."""
    position = _position(writer, way, window, place, scale)
    last = f"({render(window.size)} - 1)"

    def inside(text: str) -> str:
        return writer.let(f"tl.maximum(tl.minimum({text}, {last}), 0).to(tl.int32)", "position")

    if way.mode == "nearest":
        rounded = {
            "floor": "libdevice.floor({0})",
            "ceil": "libdevice.ceil({0})",
            "round_prefer_floor": "libdevice.ceil({0} - 0.5)",
            "round_prefer_ceil": "libdevice.floor({0} + 0.5)",
        }[way.rounding]
        return [(inside(f"{rounded.format(position)}.to(tl.int32)"), "")]
    if way.mode == "linear":
        return _linear(writer, way, window, position, last)
    return _cubic(writer, position, inside)


def _linear(writer: KernelWriter, way: _Way, window: Window, position: str, last: str) -> list[_Tap]:
    bound = (
        constant(float(window.size - 1), way.real) if isinstance(window.size, int) else f"{last}.to({TYPES[way.real]})"
    )
    near = writer.let(f"tl.maximum({position}, 0.0)", "near")
    low = writer.let(f"tl.minimum(libdevice.floor({near}), {bound})", "low")
    fraction = writer.let(f"tl.minimum({near} - {low}, 1.0)", "fraction")
    first = writer.let(f"{low}.to(tl.int32)", "first")
    rest = writer.let(f"1.0 - {fraction}", "rest")
    if window.size == window.out:  # no neighbour is read: 0 times an infinite one would be NaN
        return [(first, rest), (first, fraction)]
    step = "1" if isinstance(window.size, int) else f"({render(window.size)} != {render(window.out)}).to(tl.int32)"
    second = writer.let(f"tl.minimum({first} + {step}, {last}).to(tl.int32)", "second")
    return [(first, rest), (second, fraction)]


def _cubic(writer: KernelWriter, position: str, inside: Callable[[str], str]) -> list[_Tap]:
    low = writer.let(f"libdevice.floor({position})", "low")
    fraction = writer.let(f"{position} - {low}", "fraction")
    rest = writer.let(f"1.0 - {fraction}", "rest")
    base = writer.let(f"{low}.to(tl.int32)", "base")
    a = CUBIC_COEFFICIENT
    inner, outer = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    distances = (f"({fraction} + 1.0)", fraction, rest, f"({rest} + 1.0)")
    return [
        (inside(f"{base} + {offset}"), _polynomial(writer, distance, coefficients))
        for offset, distance, coefficients in zip((-1, 0, 1, 2), distances, (outer, inner, inner, outer), strict=True)
    ]


def _polynomial(writer: KernelWriter, distance: str, coefficients: Sequence[float]) -> str:
    """Horner's rule, highest power first."""
    text = str(coefficients[0])
    for coefficient in coefficients[1:]:
        text = writer.let(f"{text} * {distance} + {coefficient}", "weight")
    return text


def _position(writer: KernelWriter, way: _Way, window: Window, place: str, scale: float | None) -> str:
    """Writes where positions of the result lie in the input."""
    type_ = TYPES[way.real]
    out = window.out
    assert isinstance(out, int), "the op says the sizes of its result"
    if way.coordinates == "pytorch_half_pixel" and out == 1:
        return writer.let(f"tl.full([], 0.0, {type_})", "at")
    number = constant(float(place), way.real) if place.isdecimal() else f"{place}.to({type_})"
    step = writer.let(_step(way, window, out, scale), "step")
    if way.coordinates in ("align_corners", "asymmetric"):
        return writer.let(f"{number} * {step}", "at")
    return writer.let(f"tl.fma({number} + 0.5, {step}, tl.full([], -0.5, {type_}))", "at")


def _step(way: _Way, window: Window, out: int, scale: float | None) -> str:
    """Returns the distance in the input of neighbours in the result."""
    type_ = TYPES[way.real]
    if isinstance(window.size, int):
        return constant(float(source_step(window.size, out, way.coordinates, scale)), way.real)
    corners = way.coordinates == "align_corners"
    if corners and out == 1:
        return constant(0.0, way.real)
    if scale is not None and not corners:
        return constant(1.0 / scale, way.real)
    length = f"({render(window.size)}{' - 1' if corners else ''}).to({type_})"
    divisor = constant(float(out - 1 if corners else out), way.real)
    return f"{length} / {divisor}" if way.real == "f64" else f"tl.div_rn({length}, {divisor})"
