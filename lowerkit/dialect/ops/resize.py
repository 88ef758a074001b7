"""lk.resize: the spatial dimensions brought to another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import resize as lowering
from lowerkit.dialect.reference import resize as numpy_resize
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.reference.window import channels_first, restore_layout
from lowerkit.dialect.shapes import element_count, fail, ranked, tensor_type
from lowerkit.dialect.types import is_float
from lowerkit.dialect.window import channel_axis, with_layout
from lowerkit.mlir import ext, ir

RESIZE_MODES = ("nearest", "linear", "cubic")
RESIZE_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
NEAREST_ROUNDINGS = ("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


class ResizeOp(LkOperation, name="resize", traits=[ext.Pure]):
    """Samples the spatial dimensions at evenly spaced positions.

    The source position of output index o, with ``scale = out / in`` (or the given one), is

    - half_pixel: ``(o + 0.5) / scale - 0.5``; pytorch_half_pixel: the same, but 0 where out is 1,
    - align_corners: ``o * (in - 1) / (out - 1)``, and 0 where out is 1,
    - asymmetric: ``o / scale``.

    nearest rounds that position; linear weighs the 2 neighbours in each dimension; cubic weighs 4 with the Keys
    kernel of coefficient -0.75. Positions outside are clamped to the border: linear clamps the position below 0
    first, as PyTorch does. Positions and weights are computed in f32 (f64 for f64), the result is rounded once.

    Operands:
        input: ``[N, C, spatial...]``, or ``[N, spatial..., C]`` with channels_last. Floats; nearest takes anything.

    Results:
        result: like the input, with the spatial sizes given.

    Attributes:
        mode: nearest, linear or cubic, applied to each spatial dimension in turn.
        coordinates: half_pixel, align_corners, asymmetric or pytorch_half_pixel.
        nearest_rounding: floor, round_prefer_floor, ceil or round_prefer_ceil: how nearest rounds a position.
        channels_last: the layout of input and result.
        size: the spatial sizes of the result.
        scales: out / in for each spatial dimension where it is not the ratio of the sizes; empty for the ratio.

    FLOPs: ``2 * taps^spatial`` for each element of the result with 1 (nearest: 0 FLOPs), 2 or 4 taps.

    Bytes: operand and result, each once.
    """

    input: Operand
    mode: ir.StringAttr
    coordinates: ir.StringAttr
    nearest_rounding: ir.StringAttr
    channels_last: ir.BoolAttr
    size: ir.DenseI64ArrayAttr
    scales: ir.DenseF64ArrayAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        *,
        mode: str,
        coordinates: str = "half_pixel",
        nearest_rounding: str = "floor",
        channels_last: bool = False,
        size: Sequence[int],
        scales: Sequence[float] = (),
    ) -> list[ir.Type]:
        """Returns the resized type; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input, (3, 4, 5))
        for name, value, allowed in (
            ("mode", mode, RESIZE_MODES),
            ("coordinates", coordinates, RESIZE_COORDINATES),
            ("nearest_rounding", nearest_rounding, NEAREST_ROUNDINGS),
        ):
            if value not in allowed:
                fail(f"attribute {name} must be one of {', '.join(allowed)}, found {value!r}")
        if mode != "nearest" and not is_float(data.element_type):
            fail(f"mode {mode} needs floating point elements, found {data.element_type}")
        if len(size) != data.rank - 2 or any(value < 1 for value in size):
            fail(f"attribute size must have {data.rank - 2} positive values for {data}, found {list(size)}")
        if len(scales) not in (0, len(size)) or any(not 0.0 < value < float("inf") for value in scales):
            fail(f"attribute scales must be empty or have {len(size)} positive values, found {list(scales)}")
        channels = data.shape[channel_axis(data.rank, channels_last)]
        return [tensor_type(with_layout(data.shape[0], channels, size, channels_last), data.element_type)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        mode: str,
        coordinates: str = "half_pixel",
        nearest_rounding: str = "floor",
        channels_last: bool = False,
        size: Sequence[int],
        scales: Sequence[float] = (),
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        parameters: dict[str, Any] = {
            "mode": mode,
            "coordinates": coordinates,
            "nearest_rounding": nearest_rounding,
            "channels_last": channels_last,
            "size": list(size),
            "scales": list(scales),
        }
        return cls.create({"input": input}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Weighs in float64 and rounds once."""
        parameters = self.parameters()
        channels_last = parameters.pop("channels_last")
        data = channels_first(input, channels_last)
        return self.rounded(restore_layout(numpy_resize.resize(data, **parameters), channels_last))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic over the result that extracts the taps."""
        return [lowering.resize(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * taps^spatial`` for each element of the result, 0 for nearest."""
        taps = _TAPS[self.mode.value]
        count = element_count(shape(self.result))
        if taps == 1:
            return 0
        return None if count is None else 2 * count * taps ** len(self.size)
