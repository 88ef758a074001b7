"""Layer norm and RMS norm: rows brought to unit scale.

``(x - mean) / sqrt(variance + epsilon) * scale + bias`` with the moments of ``norm_moments``; RMS norm has no mean and
no bias. A row comes from memory once, and once or twice more from L1; a task is a run of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.norm_moments import centered_moments, root_mean_square
from lowerkit.targets.cpu.reductions.row_frame import Rows, rows_of_anchor
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.cpu.text.run_reduction import sum_strips
from lowerkit.targets.cpu.text.text_builder import Value, is_float
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["Affine", "RowNormFamily", "affine_operands"]

Affine = tuple[Located | None, Located | None]


class RowNormFamily(KernelFamily):
    """``lk.layer_norm`` and ``lk.rms_norm`` of f32, f16, bf16 and f64, with a fused epilogue."""

    name: ClassVar[str] = "row_norm"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a row norm."""
        name = region.anchor.operation.name if region.anchor is not None else "no lk op"
        if region.anchor is None or name not in ("lk.layer_norm", "lk.rms_norm"):
            return Refusal(f"the anchor is {name}")
        operation = region.anchor.operation
        rank = ir.IntegerAttr(operation.attributes["normalized_rank"]).value
        epsilon = ir.FloatAttr(operation.attributes["epsilon"]).value
        rows = rows_of_anchor(region, cpu, rank)
        if isinstance(rows, Refusal):
            return rows
        affine = affine_operands(region, rows.frame, rows.compute)
        if isinstance(affine, Refusal):
            return affine
        centered = name == "lk.layer_norm"
        tasks = rows.each_row(lambda start, row: _emit_row(rows, start, row, affine, epsilon, centered))
        return rows.frame.plan(self.name, tasks, note=f"rows of {rows.length}, {rows.lanes} lanes, two passes")


def affine_operands(region: RegionView, frame: KernelFrame, compute: str) -> Affine | Refusal:
    """Returns the scale and bias operands of a norm, None where absent."""
    assert region.anchor is not None
    found: list[Located | None] = []
    for field in ("scale", "bias"):
        value = getattr(region.anchor, field, None)
        if value is None:
            found.append(None)
            continue
        source = source_of(value, frame)
        if not isinstance(source, Located) or not is_float(source.buffer.element):
            return Refusal(f"the {field} is not a float buffer")
        if source.buffer.element == "f64" and compute != "f64":
            return Refusal(f"the {field} is f64, the rows are not")
        found.append(source)
    return found[0], found[1]


def _emit_row(rows: Rows, start: Index, row: Index, affine: Affine, epsilon: float, centered: bool) -> None:
    text, lanes, length = rows.frame.text, rows.lanes, rows.length

    def walk(zeros: Sequence[Value], terms: Callable[[Value, Value | None], Sequence[Value]]) -> list[Value]:
        return sum_strips(text, length, lanes, zeros, lambda index, mask: terms(rows.load(start, index, mask), mask))

    measure = centered_moments if centered else root_mean_square
    moments = measure(text, walk, length, rows.compute, lanes, epsilon)
    scale, bias = affine

    def finish(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        value = moments.normalize(text, rows.load(start, index, mask))
        if scale is not None:
            value = text.mul(value, text.widen(text.read(scale.buffer, index, lanes, mask), rows.compute))
        if bias is not None:
            value = text.add(value, text.widen(text.read(bias.buffer, index, lanes, mask), rows.compute))
        rows.store(value, row, index, mask)
        return carried

    text.strip(length, lanes, finish, unroll=2)
