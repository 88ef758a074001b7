"""lk.conv_transpose: the adjoint of lk.conv, for up-sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import conv as lowering
from lowerkit.dialect.ops.conv import check_conv_operands
from lowerkit.dialect.ops.matmul import check_accumulate, check_sums
from lowerkit.dialect.reference import window as numpy_window
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import (
    DYNAMIC,
    compatible,
    element_count,
    fail,
    is_dynamic,
    per_dimension,
    ranked,
    tensor_type,
)
from lowerkit.dialect.types import compute_type, is_float
from lowerkit.dialect.window import (
    channel_axis,
    check_window,
    expand_padding,
    padding_pairs,
    spatial_sizes,
    with_layout,
)
from lowerkit.mlir import ext, ir


class ConvTransposeOp(LkOperation, name="conv_transpose", traits=[ext.Pure]):
    """Spreads each input element over the result through the filter: the adjoint of :class:`ConvOp`.

    ``result[n, g * Cout/groups + co, i * stride + k * dilation - low, ...] += input[n, ci, i...] *
    filter[ci, co, k...]`` with ``g = ci // (Cin/groups)``.

    Operands:
        input: ``[N, Cin, spatial...]``, or ``[N, spatial..., Cin]`` with channels_last.
        filter: ``[Cin, Cout/groups, kernel...]`` in both layouts.

    Results:
        result: ``[N, Cout, out...]`` or ``[N, out..., Cout]``, with
            ``out = (size - 1) * stride - low - high + dilation * (kernel - 1) + output_padding + 1``.

    Attributes:
        channels_last: the layout of input and result.
        strides: one for each spatial dimension.
        padding: ``low0, high0, low1, high1, ...``: what is cut from the result, not negative.
        dilation: the distance between filter taps, one for each spatial dimension.
        output_padding: rows added at the high end of each spatial dimension.
        groups: the number of independent channel groups.
        accumulate: the type in which products are summed; the sum is rounded once at the end, or, as that of
            ``lk.matmul``, left in this type.

    FLOPs: ``2 * N * Cin * spatial... * Cout/groups * kernel...``.

    Bytes: operands and result, each once.
    """

    input: Operand
    filter: Operand
    channels_last: ir.BoolAttr
    strides: ir.DenseI64ArrayAttr
    padding: ir.DenseI64ArrayAttr
    dilation: ir.DenseI64ArrayAttr
    output_padding: ir.DenseI64ArrayAttr
    groups: ir.IntegerAttr
    accumulate: ir.TypeAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        filter: ir.Type,
        *,
        channels_last: bool = False,
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        output_padding: Sequence[int],
        groups: int = 1,
        accumulate: ir.Type | None = None,
    ) -> list[ir.Type]:
        """Returns the type of the result; see :meth:`LkOperation.infer_result_types`."""
        data, taps = check_conv_operands(input, filter)
        kernel = taps.shape[2:]
        check_window(len(kernel), kernel, strides, padding, dilation)
        if len(output_padding) != len(kernel) or any(value < 0 for value in output_padding):
            fail(f"output_padding must have {len(kernel)} values of 0 or more, found {list(output_padding)}")
        channels = data.shape[channel_axis(data.rank, channels_last)]
        if not compatible(channels, taps.shape[0]):
            fail(f"the input has Cin = {channels}, the filter {taps.shape[0]}: they must be equal")
        if groups < 1 or (not is_dynamic(taps.shape[0]) and taps.shape[0] % groups):
            fail(f"attribute groups is {groups}, which must be positive and divide Cin = {taps.shape[0]}")
        sum_type = compute_type(data.element_type) if accumulate is None else accumulate
        check_accumulate(data.element_type, sum_type)
        spatial = [
            transposed_output(size, (k - 1) * spread + 1 + extra, stride, pair)
            for size, k, stride, pair, spread, extra in zip(
                spatial_sizes(data.shape, channels_last),
                kernel,
                strides,
                padding_pairs(padding),
                dilation,
                output_padding,
                strict=True,
            )
        ]
        outputs = DYNAMIC if is_dynamic(taps.shape[1]) else taps.shape[1] * groups
        element = data.element_type if is_float(data.element_type) else sum_type
        return [tensor_type(with_layout(data.shape[0], outputs, spatial, channels_last), element)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        filter: ir.Value,
        *,
        channels_last: bool = False,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        accumulate: ir.Type | None = None,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op. An int stands for every dimension; padding is flat low/high pairs."""
        count = ranked("filter", filter.type).rank - 2
        parameters: dict[str, Any] = {
            "channels_last": channels_last,
            "strides": per_dimension("strides", strides, count),
            "padding": expand_padding(padding, count),
            "dilation": per_dimension("dilation", dilation, count),
            "output_padding": per_dimension("output_padding", output_padding, count),
            "groups": groups,
            "accumulate": accumulate or compute_type(ranked("input", input.type).element_type),
        }
        return cls.create({"input": input, "filter": filter}, parameters, loc=loc, ip=ip).result

    def check(self) -> None:
        """Raises ``VerifyError`` if the op does not fit together; sums of floats may be left unrounded."""
        (expected,) = self.infer_result_types(self.input.type, self.filter.type, **self.parameters())
        check_sums(self.result.type, expected, self.accumulate.value)

    @quiet
    def reference(self, input: Array, filter: Array) -> tuple[Array, ...]:
        """Convolves in float64 or int64 and rounds once."""
        parameters = self.parameters()
        channels_last = parameters.pop("channels_last")
        del parameters["accumulate"]
        data = numpy_window.channels_first(input, channels_last)
        return self.rounded(
            numpy_window.restore_layout(numpy_window.conv_transpose(data, filter, **parameters), channels_last)
        )

    def build_linalg(self) -> list[ir.Value]:
        """Builds a zero-stuffed input and one linalg.generic."""
        element = self.result.type.element_type
        return [lowering.conv_transpose(self.input, self.filter, **self.parameters(), result_element=element)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * N * Cin * spatial... * Cout/groups * kernel...``."""
        products = element_count([*shape(self.input), *shape(self.filter)[1:]])
        return None if products is None else 2 * products


def transposed_output(size: int, reach: int, stride: int, padding: tuple[int, int]) -> int:
    """Returns ``(size - 1) * stride + reach - low - high``, dynamic with the size; reach is what one element covers."""
    if is_dynamic(size):
        return DYNAMIC
    output = (size - 1) * stride + reach - sum(padding)
    if output < 1:
        fail(f"padding {padding} cuts the whole result away: {output} positions would be left of size {size}")
    return output
