"""lk.max_pool and lk.avg_pool: reductions over a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import pool as lowering
from lowerkit.dialect.reference import window as numpy_window
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import element_count, fail, per_dimension, ranked, tensor_type
from lowerkit.dialect.types import is_bool, require_float
from lowerkit.dialect.window import (
    channel_axis,
    check_window,
    expand_padding,
    spatial_sizes,
    window_outputs,
    with_layout,
)
from lowerkit.mlir import ext, ir


class MaxPoolOp(LkOperation, name="max_pool", traits=[ext.Pure]):
    """The largest element of each window; a NaN in the window gives NaN. Padding never wins.

    Ceil mode is expressed by more padding at the high end. A window that lies in the padding alone gives minus
    infinity, or the smallest integer.

    Operands:
        input: ``[N, C, spatial...]``, or ``[N, spatial..., C]`` with channels_last; 1 to 3 spatial dimensions.

    Results:
        result: like the input, with
            ``out = floor((size + low + high - dilation * (kernel - 1) - 1) / stride) + 1``.

    Attributes:
        channels_last: the layout of input and result.
        kernel: the window, one size for each spatial dimension.
        strides: one for each spatial dimension.
        padding: ``low0, high0, low1, high1, ...``, not negative.
        dilation: the distance between the elements of a window.

    FLOPs: ``N * C * out... * kernel...``, one comparison each.

    Bytes: operand and result, each once.
    """

    input: Operand
    channels_last: ir.BoolAttr
    kernel: ir.DenseI64ArrayAttr
    strides: ir.DenseI64ArrayAttr
    padding: ir.DenseI64ArrayAttr
    dilation: ir.DenseI64ArrayAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        *,
        channels_last: bool = False,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> list[ir.Type]:
        """Returns the type of the result; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input, (3, 4, 5))
        if is_bool(data.element_type):
            fail(f"operand input must have numbers as elements, found {data.element_type}")
        return [
            _pooled(
                data, channels_last=channels_last, kernel=kernel, strides=strides, padding=padding, dilation=dilation
            )
        ]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        channels_last: bool = False,
        kernel: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op. An int stands for every dimension; strides default to the kernel."""
        parameters = _window_parameters(
            input, channels_last=channels_last, kernel=kernel, strides=strides, padding=padding, dilation=dilation
        )
        return cls.create({"input": input}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Pools in float64 or the integer type and rounds once."""
        parameters = self.parameters()
        channels_last = parameters.pop("channels_last")
        data = numpy_window.channels_first(input, channels_last)
        return self.rounded(numpy_window.restore_layout(numpy_window.max_pool(data, **parameters), channels_last))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a padded input and one linalg.generic over the window."""
        return [lowering.max_pool(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``N * C * out... * kernel...``."""
        return element_count([*shape(self.result), *self.kernel])


class AvgPoolOp(LkOperation, name="avg_pool", traits=[ext.Pure]):
    """The mean of each window, summed in f32 (f64 for f64) and rounded once.

    The sum over the window is divided by, in this order of precedence: ``divisor`` if it is not 0; with
    count_include_pad the number of window positions that lie in the input or its padding; else the number that lie
    in the input. High padding that only expresses ceil mode must not be counted: express it through ``ceil_extra``,
    the part of the high padding that does not count.

    Operands:
        input: ``[N, C, spatial...]``, or ``[N, spatial..., C]`` with channels_last; 1 to 3 spatial dimensions.

    Results:
        result: like the input, with ``out = floor((size + low + high - dilation * (kernel - 1) - 1) / stride) + 1``.

    Attributes:
        channels_last: the layout of input and result.
        kernel: the window, one size for each spatial dimension.
        strides: one for each spatial dimension.
        padding: ``low0, high0, low1, high1, ...``, not negative.
        dilation: the distance between the elements of a window.
        count_include_pad: padding counts as elements of the mean.
        divisor: what to divide by; 0 for the count described above.
        ceil_extra: for each spatial dimension, how much of the high padding is there for ceil mode alone.

    FLOPs: ``N * C * out... * (kernel... + 1)``.

    Bytes: operand and result, each once.
    """

    input: Operand
    channels_last: ir.BoolAttr
    kernel: ir.DenseI64ArrayAttr
    strides: ir.DenseI64ArrayAttr
    padding: ir.DenseI64ArrayAttr
    dilation: ir.DenseI64ArrayAttr
    count_include_pad: ir.BoolAttr
    divisor: ir.IntegerAttr
    ceil_extra: ir.DenseI64ArrayAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        *,
        channels_last: bool = False,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        count_include_pad: bool = True,
        divisor: int = 0,
        ceil_extra: Sequence[int],
    ) -> list[ir.Type]:
        """Returns the type of the result; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input, (3, 4, 5))
        require_float("input", data.element_type)
        if divisor < 0:
            fail(f"attribute divisor must be positive, or 0 for automatic, found {divisor}")
        result = _pooled(
            data, channels_last=channels_last, kernel=kernel, strides=strides, padding=padding, dilation=dilation
        )
        if len(ceil_extra) != len(kernel) or any(
            not 0 <= extra <= high for extra, high in zip(ceil_extra, list(padding)[1::2], strict=False)
        ):
            fail(f"ceil_extra must lie between 0 and the high padding {list(padding)[1::2]}, found {list(ceil_extra)}")
        return [result]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        channels_last: bool = False,
        kernel: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        count_include_pad: bool = True,
        divisor: int = 0,
        ceil_extra: int | Sequence[int] = 0,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op. An int stands for every dimension; strides default to the kernel."""
        parameters = _window_parameters(
            input, channels_last=channels_last, kernel=kernel, strides=strides, padding=padding, dilation=dilation
        )
        parameters["count_include_pad"] = count_include_pad
        parameters["divisor"] = divisor
        parameters["ceil_extra"] = per_dimension("ceil_extra", ceil_extra, len(parameters["kernel"]))
        return cls.create({"input": input}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Pools in float64 and rounds once."""
        parameters = self.parameters()
        channels_last = parameters.pop("channels_last")
        data = numpy_window.channels_first(input, channels_last)
        return self.rounded(numpy_window.restore_layout(numpy_window.avg_pool(data, **parameters), channels_last))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a padded input and one linalg.generic over the window, then the division."""
        return [lowering.avg_pool(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``N * C * out... * (kernel... + 1)``."""
        outputs, window = element_count(shape(self.result)), element_count(list(self.kernel))
        return None if outputs is None or window is None else outputs * (window + 1)


def _pooled(
    data: ir.RankedTensorType,
    *,
    channels_last: bool,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ir.Type:
    check_window(data.rank - 2, kernel, strides, padding, dilation)
    spatial = window_outputs(spatial_sizes(data.shape, channels_last), kernel, strides, padding, dilation)
    channels = data.shape[channel_axis(data.rank, channels_last)]
    return tensor_type(with_layout(data.shape[0], channels, spatial, channels_last), data.element_type)


def _window_parameters(
    input: ir.Value,
    *,
    channels_last: bool,
    kernel: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> dict[str, Any]:
    count = ranked("input", input.type).rank - 2
    return {
        "channels_last": channels_last,
        "kernel": per_dimension("kernel", kernel, count),
        "strides": per_dimension("strides", kernel if strides is None else strides, count),
        "padding": expand_padding(padding, count),
        "dilation": per_dimension("dilation", dilation, count),
    }
