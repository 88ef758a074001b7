"""Reductions over any axes: ``lk.reduce``.

Vocabulary
    kept, reduced   what the dimensions are; neighbours of one sort are merged into one group.
    horizontal      the innermost group is reduced: the lanes of one vector are folded at the end.
    vertical        the innermost group is kept: every lane owns one result, ``COLUMNS`` vectors side by side.

Sums of floats are carried in f32 (f64 for f64) with the cascade of ``text/run_reduction.py``. argmax and argmin take
two walks: the extreme first, then the first position that equals it (a NaN is the extreme). Bytes: the input once
(twice for argmax, the second time from cache where it fits), the result once. A result is never split over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.reduce_groups import DimGroup, group_dims, result_groups
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame, element_name
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.run_reduction import cascade_sum, fold_strip, sum_strip
from lowerkit.targets.cpu.text.text_builder import Value, bit_width, is_float
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.plan import DeviceCode, KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["ReduceFamily"]

COLUMNS = 4
_CASCADE_STEPS = 16
_GRAIN = 16384
_COMBINERS = {"sum": "add", "mean": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


class ReduceFamily(KernelFamily):
    """``lk.reduce`` of every kind and element type, over any axes, with an epilogue."""

    name: ClassVar[str] = "reduce"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a reduction."""
        if region.anchor is None or region.anchor.operation.name != "lk.reduce":
            return Refusal("the anchor is not lk.reduce")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        source = anchor_operand(region, frame, 0)
        if isinstance(source, Refusal):
            return source
        extents = frame.extents[source.operand]
        if len(extents) != len(source.sizes):
            return Refusal("the operand is reshaped inside the region")
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        axes = list(ir.DenseI64ArrayAttr(operation.attributes["axes"]))
        keep_dims = ir.BoolAttr(operation.attributes["keep_dims"]).value
        groups = group_dims(frame, source.sizes, extents, axes)
        kept = sum(not group.reduced for group in groups)
        merged = epilogue.collapsed(result_groups(groups, len(source.sizes), axes, keep_dims), max(0, kept - 1))
        if isinstance(merged, Refusal):
            return merged
        kernel = _Reduction(
            frame=frame,
            source=source.buffer,
            epilogue=merged,
            groups=groups,
            kind=ir.StringAttr(operation.attributes["kind"]).value,
            result_element=element_name(operation.results[0].type),
            vector_bits=cpu.vector_bits,
        )
        tasks = kernel.emit()
        way = "horizontal" if not groups or groups[-1].reduced else "vertical"
        return frame.plan(self.name, tasks, note=f"{way} {kernel.kind}, {kernel.lanes} lanes")


@dataclass
class _Reduction:
    frame: KernelFrame
    source: Buffer
    epilogue: Epilogue
    groups: list[DimGroup]
    kind: str
    result_element: str
    vector_bits: int

    def __post_init__(self) -> None:
        element = self.source.element
        if self.kind in ("any", "all"):
            self.compute = "i32"
        elif element in ("f16", "bf16"):
            self.compute = "f32"
        else:
            self.compute = "i8" if element == "i1" else element
        self.lanes = self.vector_bits // max(32, bit_width(self.compute))
        self.kept = [group for group in self.groups if not group.reduced]
        self.reduced = [group for group in self.groups if group.reduced]
        self.count = self.frame.text.iproduct([group.size for group in self.reduced])

    # --- the two ways -----------------------------------------------------------------------------------------

    def emit(self) -> KernelExpr:
        if self.groups and not self.groups[-1].reduced:
            return self._vertical()
        return self._horizontal()

    def _horizontal(self) -> KernelExpr:
        text = self.frame.text
        length = self.count
        results = max(1, _GRAIN // max(1, length)) if isinstance(length, int) else 1
        total = text.iproduct([group.size for group in self.kept])
        with self.frame.tasks() as task:
            first = text.imul(task, results)
            with text.span(first, text.imin(total, text.iadd(first, results))) as loop:
                place = text.unravel(loop.index, [group.size for group in self.kept])
                base = text.dot(place, [group.stride for group in self.kept])
                self._store(self._fold_rows(base), place, None)
        return expression("ceildiv", product([group.extent for group in self.kept]), results)

    def _vertical(self) -> KernelExpr:
        text = self.frame.text
        inner, outer = self.kept[-1], self.kept[:-1]
        width = COLUMNS * self.lanes
        with self.frame.tasks() as task:
            blocks = text.iceildiv(inner.size, width)
            first = text.imul(text.irem(task, blocks), width)
            place = text.unravel(text.idiv(task, blocks), [group.size for group in outer])
            base = text.iadd(text.dot(place, [group.stride for group in outer]), first)

            def columns(start: Index, number: int, mask: Value | None) -> None:
                values = self._fold_columns(text.iadd(base, start), number, mask)
                for vector, value in enumerate(values):
                    at = text.iadd(text.iadd(first, start), vector * self.lanes)
                    self._store(value, [*place, at], mask)

            def single(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                columns(index, 1, mask)
                return carried

            left = text.isub(inner.size, first)
            if isinstance(inner.size, int) and inner.size % width == 0:
                columns(0, COLUMNS, None)
            elif isinstance(inner.size, int) and inner.size < width:
                text.strip(inner.size, self.lanes, single)
            else:
                whole = text.compare("sge", text.as_value(left), text.i64(width))
                with text.when(whole):
                    columns(0, COLUMNS, None)
                rest = text.select(whole, text.i64(0), text.as_value(left))
                text.strip(rest, self.lanes, single, guard_tail=True)
        return expression("mul", product([group.extent for group in outer]), expression("ceildiv", inner.extent, width))

    # --- walks ------------------------------------------------------------------------------------------------

    def _fold_rows(self, base: Index) -> Value:
        """Reduces everything at ``base`` to a scalar of the compute type (an i64 position for argmax)."""
        text, lanes = self.frame.text, self.lanes
        if self.kind not in ("argmax", "argmin"):
            combiner = _COMBINERS[self.kind]
            return self._finish(text.fold_lanes(combiner, self._walk_rows(base, combiner, self._neutral(), self._term)))
        extreme = text.fold_lanes(self.kind[3:], self._walk_rows(base, self.kind[3:], self._neutral(), self._term))
        sought = text.broadcast(extreme, lanes)
        far = text.constant(2**63 - 1, "i64", lanes)

        def position(at: Index, index: Index, mask: Value | None) -> Value:
            numbers = text.add(text.lane_numbers(lanes), text.broadcast(text.as_value(index), lanes))
            return text.select(self._equals(self._load(at, lanes, mask), sought, mask), numbers, far)

        return text.fold_lanes("min", self._walk_rows(base, "min", far, position))

    def _walk_rows(
        self, base: Index, combiner: str, start: Value, term: Callable[[Index, Index, Value | None], Value]
    ) -> Value:
        text, lanes = self.frame.text, self.lanes
        if not self.reduced:
            only = term(base, 0, text.mask(1, lanes))
            return text.combine(combiner, start, only)
        inner, outer = self.reduced[-1], self.reduced[:-1]

        def row(at: Index) -> Value:
            def element(index: Index, mask: Value | None) -> Value:
                return term(text.iadd(at, index), index, mask)

            if combiner == "add":
                return sum_strip(text, inner.size, lanes, start, element)
            return fold_strip(text, inner.size, lanes, combiner, start, element)

        if not outer:
            return row(base)
        sizes, strides = [group.size for group in outer], [group.stride for group in outer]
        count = text.iproduct(sizes)
        if combiner == "add" and is_float(self.compute):
            total, lost = cascade_sum(
                text,
                count,
                1,
                [start],
                lambda index: [row(text.iadd(base, text.dot(text.unravel(index, sizes), strides)))],
            )[0]
            return text.add(total, lost)
        with text.span(0, count, 1, [start]) as loop:
            value = row(text.iadd(base, text.dot(text.unravel(loop.index, sizes), strides)))
            text.yield_([text.combine(combiner, loop.carried[0], value)])
        return loop.results[0]

    def _fold_columns(self, base: Index, number: int, mask: Value | None) -> list[Value]:
        """Reduces ``number`` neighbouring vectors of columns."""
        text, lanes = self.frame.text, self.lanes

        def terms(index: Index) -> list[Value]:
            sizes, strides = [group.size for group in self.reduced], [group.stride for group in self.reduced]
            at = text.iadd(base, text.dot(text.unravel(index, sizes), strides))
            return [self._term(text.iadd(at, vector * lanes), index, mask) for vector in range(number)]

        if self.kind not in ("argmax", "argmin"):
            return [self._finish(value) for value in self._walk_columns(_COMBINERS[self.kind], number, terms)]
        extremes = self._walk_columns(self.kind[3:], number, terms)
        far = text.constant(2**63 - 1, "i64", lanes)
        with text.span(0, self.count, 1, [far] * number) as loop:
            here = text.broadcast(loop.index, lanes)
            nearest = [
                text.binary("arith.minsi", old, text.select(self._equals(value, sought, None), here, far))
                for old, value, sought in zip(loop.carried, terms(loop.index), extremes, strict=True)
            ]
            text.yield_(nearest)
        return loop.results

    def _walk_columns(self, combiner: str, number: int, terms: Callable[[Index], list[Value]]) -> list[Value]:
        text = self.frame.text
        start = [self._neutral()] * number

        def run(low: Index, high: Index) -> list[Value]:
            with text.span(low, high, 1, start) as loop:
                values = terms(loop.index)
                text.yield_([text.combine(combiner, a, b) for a, b in zip(loop.carried, values, strict=True)])
            return loop.results

        short = isinstance(self.count, int) and self.count <= _CASCADE_STEPS
        if combiner != "add" or not is_float(self.compute) or short:
            return run(0, self.count)
        sums = cascade_sum(
            text,
            self.count,
            _CASCADE_STEPS,
            start,
            lambda index: run(index, text.imin(self.count, text.iadd(index, _CASCADE_STEPS))),
        )
        return [text.add(total, lost) for total, lost in sums]

    # --- one element ------------------------------------------------------------------------------------------

    def _load(self, at: Index, lanes: int, mask: Value | None) -> Value:
        text = self.frame.text
        value = text.read(self.source, at, lanes, mask)
        if self.kind in ("any", "all"):
            if value.element != "i1":
                value = text.widen(value) if value.element in ("f16", "bf16") else value
                value = text.compare("une" if is_float(value.element) else "ne", value, text.like(0, value))
            return text.cast("arith.extui", value, "i32")
        return text.widen(value, self.compute) if is_float(value.element) else value

    def _term(self, at: Index, index: Index, mask: Value | None) -> Value:
        del index
        value = self._load(at, self.lanes, mask)
        return value if mask is None else self.frame.text.select(mask, value, self._neutral())

    def _equals(self, value: Value, sought: Value, mask: Value | None) -> Value:
        text = self.frame.text
        if is_float(value.element):
            found = text.binary("arith.ori", text.compare("oeq", value, sought), text.compare("uno", value, value))
        else:
            found = text.compare("eq", value, sought)
        return found if mask is None else text.binary("arith.andi", found, mask)

    def _neutral(self) -> Value:
        text, lanes = self.frame.text, self.lanes
        combiner = self.kind[3:] if self.kind.startswith("arg") else _COMBINERS[self.kind]
        if combiner in ("max", "min"):
            if is_float(self.compute):
                return text.constant(-math.inf if combiner == "max" else math.inf, self.compute, lanes)
            limit = 2 ** (bit_width(self.compute) - 1)
            return text.constant(-limit if combiner == "max" else limit - 1, self.compute, lanes)
        return text.constant({"add": 0, "or": 0, "mul": 1, "and": 1}[combiner], self.compute, lanes)

    def _finish(self, value: Value) -> Value:
        """From the compute type to the anchor's element."""
        text = self.frame.text
        if self.kind == "mean":
            count = text.cast("arith.sitofp", text.as_value(self.count), self.compute)
            value = text.div(value, text.broadcast(count, value.lanes))
        if self.kind in ("any", "all"):
            return text.compare("ne", value, text.like(0, value))
        return text.narrow(value, self.result_element) if is_float(self.compute) else value

    def _store(self, value: Value, place: Sequence[Index], mask: Value | None) -> None:
        rest = len(self.epilogue.coordinates) - len(place)
        self.epilogue.store(value, [*place, *[0] * rest], max(0, len(place) - 1), mask)
