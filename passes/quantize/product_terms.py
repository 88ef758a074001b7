"""What zero points, scales and bias add to the integer sums of a product, as elementwise ops on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import arith, ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.elementwise import IndexMap, build_elementwise, identity_map
from lowerkit.passes.quantize.bias import Bias
from lowerkit.passes.quantize.parameters import Array, constant_parameter, derived
from lowerkit.passes.rewriting import element_of, empty_like, shape_of


@dataclass(frozen=True)
class Terms:
    """The weight's side of a product.

    Attributes:
        weight: name of the weight as it is stored.
        shape: of the weight.
        output_axis: of the weight.
        channel_axis: of the sums.
        scale: float64, rank 0 or one for each output channel.
        point: int64 likewise, of the signed weight.
        flip: the weight is stored unsigned and is signed after the highest bit is flipped.
    """

    weight: str
    shape: tuple[int, ...]
    output_axis: int
    channel_axis: int
    scale: Array
    point: Array
    flip: bool

    @property
    def outputs(self) -> int:
        """Output channels."""
        return self.shape[self.output_axis]

    def totals(self, weight: Array) -> Array:
        """Returns ``sum (w - zw)`` of each output channel, in int64."""
        signed = (weight.view(np.uint8) ^ 128).view(np.int8) if self.flip else weight
        summed = tuple(index for index in range(len(self.shape)) if index != self.output_axis)
        return signed.astype(np.int64).sum(summed) - weight.size // self.outputs * self.point


def add_offsets(
    terms: Terms,
    sums: ir.Value,
    windows: ir.Value | None,
    point: int,
    scale: Array,
    bias: Bias | None,
    bits: int,
    context: PassContext,
) -> ir.Value:
    """Builds ``(sums - zw * windows) << bits``, plus ``bias - zx * sum (w - zw)`` in the same units.

    Args:
        terms: the weight.
        sums: ``sum x w``, i32.
        windows: ``sum x``, with one channel or as many as ``sums``; None for a symmetric weight.
        point: zero point of x as it is stored.
        scale: what one unit of the result stands for.
        bias: what is added next; None for nothing.
        bits: by how much finer the units of the result are than those of the sums.
        context: of the pass.
    """
    if bias is None and point == 0 and windows is None:
        return sums
    parents = [terms.weight, *([] if bias is None else [bias.weight])]

    def offsets(weight: Array, *given: Array) -> Array:
        total = -point * terms.totals(weight) << bits
        if bias is not None:
            total = total + bias.in_units(given[0], scale)
        return total.astype(np.int32)

    vector = derived(context, f"{terms.weight}.offset", parents, offsets, dtype="i32", shape=[terms.outputs])
    along: IndexMap = (terms.channel_axis,)
    inputs, maps = _sums_and_windows(terms, sums, windows, context)

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        number = _corrected(elements, windows)
        if bits:
            number = arith.ShLIOp(number, scalar.constant(bits, number.type)).result
        return [arith.AddIOp(number, elements[-1]).result]

    init = empty_like(sums, range(len(shape_of(sums))), element_of(sums))
    return build_elementwise([*inputs, vector], [*maps, along], [init], write, ir.Location.current).results[0]


def scaled_at_run_time(
    terms: Terms,
    sums: ir.Value,
    windows: ir.Value | None,
    scale: ir.Value,
    point: ir.Value,
    context: PassContext,
) -> ir.Value:
    """Builds ``f32(sums - zw * windows - zx * sum (w - zw)) * (sx * sw)`` in f32.

    Args:
        terms: the weight.
        sums: ``sum x w``, i32.
        windows: ``sum x``, None for a symmetric weight.
        scale: sx, f32 or f64 of rank 0.
        point: zx, i32 of rank 0.
        context: of the pass.
    """
    f32 = ir.F32Type.get()

    def totals(weight: Array) -> Array:
        return terms.totals(weight).astype(np.int32)

    vector = derived(context, f"{terms.weight}.total", [terms.weight], totals, dtype="i32", shape=[terms.outputs])
    factors = constant_parameter(context, f"{terms.weight}.scale", terms.scale.astype(np.float32))
    along: IndexMap = (terms.channel_axis,)
    inputs, maps = _sums_and_windows(terms, sums, windows, context)

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        total, zero, left, right = elements[-4:]
        number = scalar.subtract(_corrected(elements, windows), scalar.multiply(zero, total))
        factor = scalar.multiply(scalar.convert(left, f32), right)
        return [scalar.multiply(scalar.convert(number, f32), factor)]

    init = empty_like(sums, range(len(shape_of(sums))), f32)
    return build_elementwise(
        [*inputs, vector, point, scale, factors],
        [*maps, along, (), (), along if terms.scale.ndim else ()],
        [init],
        write,
        ir.Location.current,
    ).results[0]


def _sums_and_windows(
    terms: Terms, sums: ir.Value, windows: ir.Value | None, context: PassContext
) -> tuple[list[ir.Value], list[IndexMap]]:
    """Returns what :func:`_corrected` reads: the sums, and for a weight that is not symmetric ``sum x`` and zw."""
    rank = len(shape_of(sums))
    if windows is None:
        return [sums], [identity_map(rank)]
    points = constant_parameter(context, f"{terms.weight}.point", terms.point.astype(np.int32))
    single = shape_of(windows)[terms.channel_axis] == 1
    window: IndexMap = tuple(None if single and loop == terms.channel_axis else loop for loop in range(rank))
    along: IndexMap = (terms.channel_axis,) if terms.point.ndim else ()
    return [sums, windows, points], [identity_map(rank), window, along]


def _corrected(elements: list[ir.Value], windows: ir.Value | None) -> ir.Value:
    """Writes ``sums - zw * windows``; the first elements are those of what :func:`_sums_and_windows` returned."""
    if windows is None:
        return elements[0]
    return scalar.subtract(elements[0], scalar.multiply(elements[2], elements[1]))
