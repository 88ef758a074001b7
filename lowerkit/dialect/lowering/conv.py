"""Convolution and its adjoint as a padded input and one linalg.generic.

Loops of the contraction: batch n, group g, output channel c within the group, output positions o..., input channel i
within the group, kernel positions k.... The group loop exists only where groups > 1: the channel dimensions of all
three tensors are then split in two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering.matmul import Body, multiply_accumulate
from lowerkit.dialect.types import is_float
from lowerkit.dialect.window import channel_axis, padding_pairs, spatial_axes
from lowerkit.mlir import ir


def conv(
    source: ir.Value,
    filters: ir.Value,
    *,
    channels_last: bool,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    accumulate: ir.Type,
    result_element: ir.Type,
    padding_value: int = 0,
    body: Body = multiply_accumulate,
) -> ir.Value:
    """Convolves ``NC...`` or ``N...C`` with ``[Cout, Cin/groups, kernel...]``."""
    padded = _pad_spatial(source, padding, channels_last, padding_value)
    kernel = build.sizes_of(filters)[2:]
    count = len(kernel)
    reaches = [build.multiply_sizes(build.add_sizes(kernel[d], -1), dilation[d]) for d in range(count)]
    outputs = [
        _positions(build.size_of(padded, axis), reaches[d], strides[d])
        for d, axis in enumerate(spatial_axes(padded.type.rank, channels_last))
    ]
    channels = build.size_of(filters, 0)
    if groups > 1:
        filters = build.expand_dimension(filters, 0, [groups, build.divide_size(channels, groups)])
    total = _contract(
        _split_channels(padded, groups, channels_last),
        filters,
        outputs,
        [
            build.loop(_position(groups, d)) * strides[d] + build.loop(_position(groups, d) + count + 1) * dilation[d]
            for d in range(count)
        ],
        grouped=groups > 1,
        filter_output_first=True,
        channels_last=channels_last,
        accumulate=accumulate,
        body=body,
    )
    return build.convert_elements(_join_channels(total, groups, channels_last), result_element)


def conv_transpose(
    source: ir.Value,
    filters: ir.Value,
    *,
    channels_last: bool,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    accumulate: ir.Type,
    result_element: ir.Type,
) -> ir.Value:
    """Scatters through ``[Cin, Cout/groups, kernel...]``, written as a gather over a zero-stuffed input.

    The input goes to every stride-th position of a zero tensor with a margin of ``dilation * (kernel - 1)`` on each
    side, so that output o reads it at ``o + low + dilation * (kernel - 1 - k)`` for filter tap k. A tap that meets an
    inserted zero counts as 0 there: nothing is scattered, so an infinite or NaN weight must not show.
    """
    kernel = filters.type.shape[2:]
    count = len(kernel)
    span = [dilation[d] * (kernel[d] - 1) for d in range(count)]
    axes = spatial_axes(source.type.rank, channels_last)
    stuffed_sizes, outputs = build.sizes_of(source), list[build.Size]()
    for d, axis in enumerate(axes):
        low, high = padding_pairs(padding)[d]
        last = build.multiply_sizes(build.add_sizes(stuffed_sizes[axis], -1), strides[d])
        outputs.append(build.add_sizes(last, span[d] + 1 + output_padding[d] - low - high))
        stuffed_sizes[axis] = build.add_sizes(last, 2 * span[d] + 1 + output_padding[d])
    zeros = build.filled(stuffed_sizes, scalar.constant(0, source.type.element_type))
    offsets, steps = [0] * source.type.rank, [1] * source.type.rank
    for d, axis in enumerate(axes):
        offsets[axis], steps[axis] = span[d], strides[d]
    stuffed = build.insert_slice(source, zeros, offsets, steps)
    positions = [
        build.loop(_position(groups, d))
        + build.loop(_position(groups, d) + count + 1) * -dilation[d]
        + (padding[2 * d] + span[d])
        for d in range(count)
    ]
    marks = [
        (_marked(build.size_of(source, axis), stuffed_sizes[axis], span[d], strides[d]), [positions[d]])
        for d, axis in enumerate(axes)
        if is_float(filters.type.element_type) and (strides[d] > 1 or span[d] or output_padding[d])
    ]
    if groups > 1:
        filters = build.expand_dimension(filters, 0, [groups, build.divide_size(build.size_of(filters, 0), groups)])
    total = _contract(
        _split_channels(stuffed, groups, channels_last),
        filters,
        outputs,
        positions,
        grouped=groups > 1,
        filter_output_first=False,
        channels_last=channels_last,
        accumulate=accumulate,
        body=_multiply_marked,
        marks=marks,
    )
    return build.convert_elements(_join_channels(total, groups, channels_last), result_element)


def _marked(count: build.Size, size: build.Size, offset: int, step: int) -> ir.Value:
    """A vector of bools, true at the ``count`` positions ``offset``, ``offset + step``, ..."""
    element = ir.IntegerType.get_signless(1)
    marks = build.filled([count], scalar.constant(1, element))
    return build.insert_slice(marks, build.filled([size], scalar.constant(0, element)), [offset], [step])


def _multiply_marked(data: ir.Value, tap: ir.Value, *rest: ir.Value) -> ir.Value:
    """:func:`multiply_accumulate` with a tap of 0 unless all marks are true; the total comes last."""
    *marks, total = rest
    for mark in marks:
        tap = scalar.select(mark, tap, scalar.constant(0, tap.type))
    return multiply_accumulate(data, tap, total)


def _position(groups: int, dimension: int) -> int:
    """The loop of an output position: after batch, group and output channel."""
    return (3 if groups > 1 else 2) + dimension


def _contract(
    source: ir.Value,
    filters: ir.Value,
    outputs: Sequence[build.Size],
    positions: Sequence[ir.AffineExpr],
    *,
    grouped: bool,
    filter_output_first: bool,
    channels_last: bool,
    accumulate: ir.Type,
    body: Callable[..., ir.Value] = multiply_accumulate,
    marks: Sequence[tuple[ir.Value, list[ir.AffineExpr]]] = (),
) -> ir.Value:
    """Sums over input channels and kernel positions; ``positions`` index the spatial dimensions of the input.

    ``body`` gets an element of the input, one of the filter, those of ``marks`` at their indices, and the total.
    """
    count = len(outputs)
    group = [1] if grouped else []
    channel = 1 + len(group)
    spatial = list(range(channel + 1, channel + 1 + count))
    reduced = channel + 1 + count
    kernel = list(range(reduced + 1, reduced + 1 + count))
    within = build.loops([*group, reduced])
    data = [build.loop(0), *positions, *within] if channels_last else [build.loop(0), *within, *positions]
    filter_channels = [channel, reduced] if filter_output_first else [reduced, channel]
    taps = build.loops([*group, *filter_channels, *kernel])
    sizes = [build.size_of(filters, axis) for axis in range(len(group) + 2)]
    result_channels = [*sizes[: len(group)], sizes[len(group) + (0 if filter_output_first else 1)]]
    channel_loops = [*group, channel]
    if channels_last:
        shape, order = [build.size_of(source, 0), *outputs, *result_channels], [0, *spatial, *channel_loops]
    else:
        shape, order = [build.size_of(source, 0), *result_channels, *outputs], [0, *channel_loops, *spatial]
    sums = build.filled(shape, scalar.constant(0, accumulate))
    iterators = ["parallel"] * reduced + ["reduction"] * (1 + count)
    return build.generic([(source, data), (filters, taps), *marks], [(sums, build.loops(order))], iterators, body)[0]


def _pad_spatial(source: ir.Value, padding: Sequence[int], channels_last: bool, value: int) -> ir.Value:
    low, high = [0] * source.type.rank, [0] * source.type.rank
    for axis, (before, after) in zip(
        spatial_axes(source.type.rank, channels_last), padding_pairs(padding), strict=True
    ):
        low[axis], high[axis] = before, after
    return build.pad(source, low, high, scalar.constant(value, source.type.element_type)) if any(low + high) else source


def _split_channels(value: ir.Value, groups: int, channels_last: bool) -> ir.Value:
    if groups == 1:
        return value
    axis = channel_axis(value.type.rank, channels_last)
    return build.expand_dimension(value, axis, [groups, build.divide_size(build.size_of(value, axis), groups)])


def _join_channels(value: ir.Value, groups: int, channels_last: bool) -> ir.Value:
    if groups == 1:
        return value
    return build.collapse_dimensions(value, value.type.rank - 2 if channels_last else 1, 2)


def _positions(padded: build.Size, reach: build.Size, stride: int) -> build.Size:
    """How many windows fit, whose last tap lies ``reach`` behind the first."""
    before_last = build.add_sizes(build.multiply_sizes(reach, -1), -1)
    return build.add_sizes(build.divide_size(build.add_sizes(padded, before_last), stride), 1)
