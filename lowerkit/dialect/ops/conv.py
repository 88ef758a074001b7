"""lk.conv: convolution in one to three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import conv as lowering
from lowerkit.dialect.ops.matmul import check_accumulate, check_sums
from lowerkit.dialect.reference import window as numpy_window
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import element_count, fail, is_dynamic, per_dimension, ranked, tensor_type
from lowerkit.dialect.types import compute_type, is_float, require_same_element
from lowerkit.dialect.window import (
    channel_axis,
    check_window,
    expand_padding,
    spatial_sizes,
    window_outputs,
    with_layout,
)
from lowerkit.mlir import ext, ir


class ConvOp(LkOperation, name="conv", traits=[ext.Pure]):
    """Slides a filter over 1 to 3 spatial dimensions (cross-correlation, as in every framework). No bias: add it.

    ``result[n, co, o...] = sum over ci, k... of input[n, g * Cin/groups + ci, o * stride + k * dilation - low, ...]
    * filter[co, ci, k...]`` with ``g = co // (Cout/groups)``; positions outside the input count as zero.

    Operands:
        input: ``[N, Cin, spatial...]``, or ``[N, spatial..., Cin]`` with channels_last.
        filter: ``[Cout, Cin/groups, kernel...]`` in both layouts.

    Results:
        result: ``[N, Cout, out...]`` or ``[N, out..., Cout]``, with
            ``out = floor((size + low + high - dilation * (kernel - 1) - 1) / stride) + 1``. Element type: that of
            the operands for floats, ``accumulate`` for integers.

    Attributes:
        channels_last: the layout of input and result.
        strides: one for each spatial dimension.
        padding: ``low0, high0, low1, high1, ...``, not negative.
        dilation: the distance between filter taps, one for each spatial dimension.
        groups: the number of independent channel groups; Cin for a depthwise convolution.
        accumulate: the type in which products are summed; the sum is rounded once at the end, or, as that of
            ``lk.matmul``, left in this type.

    FLOPs: ``2 * N * Cout * out... * Cin/groups * kernel...``.

    Bytes: operands and result, each once.
    """

    input: Operand
    filter: Operand
    channels_last: ir.BoolAttr
    strides: ir.DenseI64ArrayAttr
    padding: ir.DenseI64ArrayAttr
    dilation: ir.DenseI64ArrayAttr
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
        groups: int = 1,
        accumulate: ir.Type | None = None,
    ) -> list[ir.Type]:
        """Returns the type of the result; see :meth:`LkOperation.infer_result_types`."""
        data, taps = check_conv_operands(input, filter)
        kernel = taps.shape[2:]
        check_window(len(kernel), kernel, strides, padding, dilation)
        channels = data.shape[channel_axis(data.rank, channels_last)]
        outputs, per_group = taps.shape[0], taps.shape[1]
        check_groups(groups, channels, per_group, outputs)
        sum_type = compute_type(data.element_type) if accumulate is None else accumulate
        check_accumulate(data.element_type, sum_type)
        spatial = window_outputs(spatial_sizes(data.shape, channels_last), kernel, strides, padding, dilation)
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
        return self.rounded(numpy_window.restore_layout(numpy_window.conv(data, filter, **parameters), channels_last))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a padded input and one linalg.generic."""
        element = self.result.type.element_type
        return [lowering.conv(self.input, self.filter, **self.parameters(), result_element=element)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * N * Cout * out... * Cin/groups * kernel...``."""
        products = element_count([*shape(self.result), *shape(self.filter)[1:]])
        return None if products is None else 2 * products


def check_conv_operands(input: ir.Type, filter: ir.Type) -> tuple[ir.RankedTensorType, ir.RankedTensorType]:
    """Fails unless input and filter have one rank from 3 to 5 and one element type."""
    data, taps = ranked("input", input, (3, 4, 5)), ranked("filter", filter, (3, 4, 5))
    if data.rank != taps.rank:
        fail(f"input {data} has rank {data.rank}, filter {taps} has rank {taps.rank}: they must be equal")
    if any(is_dynamic(size) for size in taps.shape[2:]):
        fail(f"the kernel sizes of filter {taps} must be static")
    require_same_element("input", data.element_type, "filter", taps.element_type)
    return data, taps


def check_groups(groups: int, channels: int, per_group: int, outputs: int) -> None:
    """Fails unless ``channels == per_group * groups`` and the groups divide ``outputs``."""
    if groups < 1:
        fail(f"attribute groups must be positive, found {groups}")
    if not is_dynamic(channels) and not is_dynamic(per_group) and channels != per_group * groups:
        fail(f"the input has Cin = {channels}, but the filter takes {per_group} channels in each of {groups} groups")
    if not is_dynamic(outputs) and outputs % groups:
        fail(f"the filter has Cout = {outputs}, which {groups} groups do not divide")
