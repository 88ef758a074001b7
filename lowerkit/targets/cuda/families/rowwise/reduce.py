"""``lk.reduce`` over any axes: rows that are combined as trees, in one order whatever the machine.

Few long rows would leave most of the machine idle: they are cut into parts, one block each, whose values lie in
temporaries until a second launch combines them. Nothing is added with atomics, so results are the same every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.runtimes.cuda.image import Function, Launch
from lowerkit.targets.cuda.families.rowwise.folds import Combiner, combiner, position
from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion, read_rows, runs_along, total
from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile, choose_rows
from lowerkit.targets.cuda.families.rowwise.rows import Fold, Piece, Rows, divided
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion, kernel_name
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import POINTERS, TYPES, constant, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Tensor, pointer_types, row_major
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

PARTS = 264
"""Parts of a row at most: two blocks for each multiprocessor of a large card."""
_PART = 4096
"""Elements of a part at least."""
_HELD = 4096


class ReduceFamily(KernelFamily):
    """``lk.reduce`` of every kind and element type, with an epilogue."""

    name: ClassVar[str] = "reduce"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = read_rows(region, ("lk.reduce",))
        if isinstance(found, Refusal):
            return found
        reduction = _Reduction(found)
        parts = reduction.parts()
        return reduction.one_launch() if parts == 1 else reduction.two_launches(parts)


class _Reduction:
    def __init__(self, found: RowRegion) -> None:
        self.found = found
        self.kind = ir.StringAttr(found.anchor.attributes["kind"]).value
        self.reduced = tuple(ir.DenseI64ArrayAttr(found.anchor.attributes["axes"]))
        self.positions = self.kind in ("argmax", "argmin")
        self.combiner: Combiner = combiner(self.kind, found.source.element)
        sizes = found.source.sizes
        self.length = product([sizes[axis] for axis in self.reduced])
        self.count = product([size for axis, size in enumerate(sizes) if axis not in self.reduced])
        self.index = "i32" if isinstance(self.length, int) and self.length < 1 << 31 else "i64"
        self.tile = found.tile(found.source, self.reduced, _choose, self.combiner.carried)

    def parts(self) -> int:
        """Into how many parts a row is cut."""
        if not isinstance(self.count, int):
            return 1
        blocks = -(-self.count // self.tile.rows)
        wanted = PARTS // blocks
        if isinstance(self.length, int):
            wanted = min(wanted, self.length // (_PART if runs_along(self.found.source, self.reduced) else 256))
        return max(1, wanted)

    def fold(self, writer: KernelWriter) -> Fold:
        return position(writer, self.combiner, self.index) if self.positions else self.combiner.fold(writer)

    def one_launch(self) -> PlannedRegion:
        found, writer = self.found, KernelWriter()
        rows = Rows(writer, found.source.sizes, self.reduced, self.tile, wide=found.frame.wide)
        values = rows.fold(self.fold(writer), lambda piece: self._elements(rows, piece))
        self._finish(writer, rows, values)
        return found.planned(ReduceFamily.name, writer, rows, 1)

    def two_launches(self, parts: int) -> PlannedRegion:
        found = self.found
        tile = self.tile
        if tile.whole:
            tile = RowTile(tile.rows, tile.columns, False, tile.warps)
        each = expression(
            "mul", expression("ceildiv", expression("ceildiv", self.length, parts), tile.columns), tile.columns
        )
        types = [self.combiner.carried, self.index] if self.positions else [self.combiner.carried]
        first = len(found.frame.buffers)
        partial = [
            Tensor(first + number, type_, (self.count, parts), row_major((self.count, parts)))
            for number, type_ in enumerate(types)
        ]
        writer = KernelWriter()
        wide = ".to(tl.int64)" if found.frame.wide else ""
        pid = writer.let(f"tl.program_id(0){wide}", "pid")
        part = writer.let(f"{pid} % {parts}", "part")
        begin = writer.let(f"{part} * {render(each)}", "begin")
        end = writer.let(f"tl.minimum({begin} + {render(each)}, {render(self.length)})", "end")
        rows = Rows(
            writer, found.source.sizes, self.reduced, tile, wide=found.frame.wide,
            pid=writer.let(f"{pid} // {parts}", "block"), begin=begin, end=end,
        )  # fmt: skip
        values = rows.fold(self.fold(writer), lambda piece: self._elements(rows, piece))
        for tensor, value in zip(partial, values, strict=True):
            mask = "" if rows.row_mask is None else f", mask={rows.row_mask}"
            writer.line(f"tl.store(p{tensor.pointer} + {rows.row} * {parts} + {part}, {value}{mask})")
        blocks = product([rows.blocks, parts])
        kernels = [self._kernel(writer, types, tile.warps)]
        last = KernelWriter()
        gathered = choose_rows(self.count, parts, True, 4)
        second = Rows(last, (self.count, parts), (1,), gathered, wide=found.frame.wide)
        fold = self.fold(last)

        def stored(piece: Piece) -> list[str]:
            return [
                second.load(piece, tensor, tensor.element, neutral)
                for tensor, neutral in zip(partial, fold.neutral, strict=True)
            ]

        self._finish(last, second, second.fold(fold, stored))
        kernels.append(self._kernel(last, types, gathered.warps))
        return self._planned(kernels, [blocks, second.blocks], [tensor.bytes for tensor in partial], parts)

    def _elements(self, rows: Rows, piece: Piece) -> list[str]:
        """The values of a piece, neutral where there is no element."""
        writer, source, carried = rows.writer, self.found.source, self.combiner.carried
        if self.kind in ("any", "all"):
            loaded = rows.load(
                piece,
                source,
                source.element,
                constant(self.combiner.neutral, source.element if source.element != "i1" else "i8"),
            )
            return [f"({loaded} != 0).to(tl.int32)" if source.element != "i1" else f"{loaded}.to(tl.int32)"]
        loaded = rows.load(piece, source, carried, constant(self.combiner.neutral, source.element))
        if not self.positions:
            return [loaded]
        column = piece.axes[1].text
        far = constant(2**31 - 1 if self.index == "i32" else 2**63 - 1, self.index)
        at = writer.let(f"{column}.to({TYPES[self.index]}) + tl.zeros({rows.shape}, {TYPES[self.index]})")
        return [loaded, at if piece.mask is None else f"tl.where({piece.mask}, {at}, {far})"]

    def _finish(self, writer: KernelWriter, rows: Rows, values: Sequence[str]) -> None:
        """Writes the values of the rows, from the carried type on."""
        found, value, carried = self.found, values[-1], self.combiner.carried
        if self.kind == "mean":
            value = writer.let(divided(carried, value, self._count(carried)))
        if self.kind in ("any", "all"):
            value = writer.let(f"{value} != 0")
        else:
            value = writer.let(converted(value, self.index if self.positions else carried, found.result), "value")
        sizes = self._result_sizes()
        axis = rows.row_axis()
        found.epilogue.write(writer, value, [Axis(axis.text, tuple(range(len(sizes))), sizes, axis.mask)])

    def _count(self, carried: str) -> str:
        if isinstance(self.length, int):
            return constant(float(self.length), carried)
        return f"({render(self.length)}).to({TYPES[carried]})"

    def _result_sizes(self) -> tuple[KernelExpr, ...]:
        sizes = enumerate(self.found.source.sizes)
        if ir.BoolAttr(self.found.anchor.attributes["keep_dims"]).value:
            return tuple(1 if axis in self.reduced else size for axis, size in sizes)
        return tuple(size for axis, size in sizes if axis not in self.reduced)

    def _kernel(self, writer: KernelWriter, types: Sequence[str], warps: int) -> TritonKernel:
        frame = self.found.frame
        pointers = (*pointer_types(frame), *(POINTERS[type_] for type_ in types))
        return TritonKernel(ReduceFamily.name, writer.source(len(pointers), frame.dims), pointers, frame.dims, warps)

    def _planned(
        self,
        kernels: Sequence[TritonKernel],
        blocks: Sequence[KernelExpr],
        temporaries: Sequence[KernelExpr],
        parts: int,
    ) -> PlannedRegion:
        bytes_ = [buffer.bytes for buffer in self.found.frame.buffers]
        operands = len(self.found.region.operands)
        pointers = list(range(len(bytes_) + len(temporaries)))
        between = total(temporaries)
        traffic = ((total(bytes_[:operands]), between), (between, total(bytes_[operands:])))
        flops = (product([self.count, self.length]), product([self.count, parts]))
        launches = [
            Launch(kernel_name(kernel), pointers, count, 32 * kernel.warps, flops=work, read=read, written=written)
            for kernel, count, work, (read, written) in zip(kernels, blocks, flops, traffic, strict=True)
        ]
        function = Function(bytes_[:operands], bytes_[operands:], list(temporaries), self.found.frame.dims, launches)
        named = {kernel_name(kernel): FastKernel(kernel) for kernel in kernels}
        note = f"{parts} parts, {self.tile.words}"
        return PlannedRegion(function, named, ReduceFamily.name, note)


def _choose(rows: KernelExpr, length: KernelExpr, along: bool, width: int) -> RowTile:
    return choose_rows(rows, length, along, width, _HELD, cut=True)
