"""Softmax and its logarithm, along any axis.

A row that fits stays in registers: its maximum, the sum of exponentials, the quotients. A longer one is read twice:
each place of the tile carries a maximum and the sum of exponentials below it, rescaled when the maximum grows.

Exponentials of rows that are rounded to 16 bits are ``exp2`` of a product; those of f32 are as exact as libdevice's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.folds import combiner
from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion, read_rows
from lowerkit.targets.cuda.families.rowwise.row_tiles import choose_rows
from lowerkit.targets.cuda.families.rowwise.rows import Fold, Piece, Rows, divided, sum_of
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.scalars import NARROW, converted
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16", "f64")
_LOG2_E = 1.4426950408889634
_LOWEST = 'float("-inf")'
_HIGHER = "tl.maximum(tl.maximum({0}, {1}), {1})"
"""A NaN may be passed over, since the sum has it again. Written twice, which LLVM sees through: for one maximum Triton
would take an instruction that is for sm_100a alone."""


class SoftmaxFamily(KernelFamily):
    """``lk.softmax`` of floats, with an epilogue."""

    name: ClassVar[str] = "softmax"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = read_rows(region, ("lk.softmax",), _FLOATS)
        if isinstance(found, Refusal):
            return found
        axis = ir.IntegerAttr(found.anchor.attributes["axis"]).value
        writer = KernelWriter()
        rows = found.rows(writer, found.source, (axis,), choose_rows)
        _write(found, rows, ir.BoolAttr(found.anchor.attributes["log"]).value)
        return found.planned(self.name, writer, rows, 5)


def _write(found: RowRegion, rows: Rows, log: bool) -> None:
    writer, compute = rows.writer, found.compute
    exact = found.source.element not in NARROW

    def exponential(text: str) -> str:
        return f"libdevice.exp({text})" if exact else f"tl.exp2(({text}) * {_LOG2_E})"

    def element(piece: Piece) -> str:
        return rows.load(piece, found.source, compute, _LOWEST)

    peak, sums = _statistics(rows, compute, exponential, element)
    peak = rows.spread(peak)
    if log:
        sums = rows.spread(writer.let(f"libdevice.log({sums})"))
    else:
        sums = rows.spread(sums)
    with rows.pieces() as piece:
        shifted = writer.let(f"{element(piece)} - {peak}")
        value = f"{shifted} - {sums}" if log else divided(compute, writer.let(exponential(shifted)), sums)
        value = writer.let(converted(writer.let(value), compute, found.result), "value")
        found.epilogue.write(writer, value, piece.axes)


def _statistics(
    rows: Rows, compute: str, exponential: Callable[[str], str], element: Callable[[Piece], str]
) -> tuple[str, str]:
    """Returns maximum and sum of exponentials of each row."""
    writer = rows.writer
    highest = replace(combiner("max", compute), pattern=_HIGHER)
    if rows.tile.whole:
        (peak,) = rows.fold(highest.fold(writer), lambda piece: [element(piece)])
        spread = rows.spread(peak)
        # An element that is not there is -inf, of which the exponential is 0, or NaN in a row that is NaN anyway.
        (sums,) = rows.fold(sum_of(compute), lambda piece: [exponential(writer.let(f"{element(piece)} - {spread}"))])
        return peak, sums

    def grown(carried: Sequence[str], values: Sequence[str]) -> list[str]:
        top, below = carried
        higher = writer.let(f"tl.maximum({top}, {values[0]})", "higher")
        # Where all was -inf so far, differences from it would be NaN: the sum stays 0.
        base = writer.let(f"tl.where({higher} == {_LOWEST}, 0, {higher})", "base")
        before, here = (exponential(f"{each} - {base}") for each in (top, values[0]))
        return [higher, f"{below} * {before} + {here}"]

    both = Fold((_LOWEST, "0"), (compute, compute), grown, lambda x, axis: "")
    tops, belows = rows.carried(both, lambda piece: [element(piece)])
    peak = writer.let(f"tl.reduce({tops}, {rows.axis}, {highest.helper(writer)})", "peak")
    return peak, writer.let(f"tl.sum({belows} * {exponential(f'{tops} - {rows.spread(peak)}')}, {rows.axis})", "sums")
