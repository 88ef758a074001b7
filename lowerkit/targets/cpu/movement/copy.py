"""Slices, concatenation, padding and insertion as straight copies.

Vocabulary
    piece     a box of the result that is copied from one source or filled with one number.
    split     the dimension of the result that tasks divide; a piece writes only its share of the task's range, so
              pieces that overlap (an insertion over its base) are written by one task in order.

The body, chains of ``tensor.extract_slice``, ``insert_slice``, ``concat`` and ``pad`` over operands, is turned into
pieces from the result inwards; no intermediate tensor exists. Bytes: what the pieces read, and the result once (the
base of an insertion is written under it, too). An insertion alone changes its base in place: it moves what is inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lowerkit.codegen.in_place import insertion
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.movement.copy_pieces import Box, Piece, PieceReader
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.plan import DeviceCode, Refusal, expression
from lowerkit.targets.region_view import RegionView

__all__ = ["CopyFamily"]

_GRAIN_BYTES = 1 << 15


class CopyFamily(KernelFamily):
    """Regions of slices, insertions, concatenations and constant padding of their operands, with one result."""

    name: ClassVar[str] = "copy"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is more than copies."""
        if region.anchor is not None or region.epilogue is not None:
            return Refusal("the region computes")
        if len(region.results) != 1:
            return Refusal(f"the region has {len(region.results)} results")
        frame = KernelFrame(region.buffer_types, region.invariant)
        reader = PieceReader(frame)
        sizes = tuple(frame.sizes[-1])
        rank = len(sizes)
        box = Box((0,) * rank, tuple(range(rank)), sizes)
        refusal = reader.place(region.returned[0], box)
        if refusal is not None:
            return refusal
        if not reader.pieces:
            return Refusal("the region copies nothing")
        inserted = insertion(region.block)
        if inserted is not None and len(reader.pieces) > 1:
            plan = _emit(self.name, frame, reader.pieces[1:], cpu)  # the first piece is the base
            return replace(plan, in_place={0: inserted[1]}, note=f"{plan.note}, in place")
        return _emit(self.name, frame, reader.pieces, cpu)


def _emit(name: str, frame: KernelFrame, pieces: Sequence[Piece], cpu: CpuFeatures) -> DeviceCode:
    text, sizes = frame.text, frame.sizes[-1]
    element = frame.buffers[-1].element
    width = element_bytes(element)
    lanes = cpu.vector_bits // (8 * width)
    split = _split_dim(sizes)
    copier = _Copier(frame, pieces, tuple(text.row_major(sizes)), lanes, split)
    if split is None:
        with frame.tasks():
            copier.emit(None)
        return frame.plan(name, 1, note=f"{len(pieces)} pieces")
    slice_bytes = width
    for dim, size in enumerate(sizes):
        slice_bytes *= size if dim != split and isinstance(size, int) else 1
    chunk = max(1, _GRAIN_BYTES // max(1, slice_bytes))
    with frame.tasks() as task:
        low = text.imul(task, chunk)
        copier.emit((low, text.imin(text.iadd(low, chunk), sizes[split])))
    tasks = expression("ceildiv", frame.extents[-1][split], chunk)
    return frame.plan(name, tasks, note=f"{len(pieces)} pieces, split along dimension {split}")


def _split_dim(sizes: Sequence[Index]) -> int | None:
    """The largest dimension but the innermost, which stays whole for long runs; dynamic ones count as large."""
    candidates = list(range(len(sizes) - 1)) or list(range(len(sizes)))
    if not candidates:
        return None
    return max(candidates, key=lambda dim: (size if isinstance(size := sizes[dim], int) else 2**40, -dim))


@dataclass
class _Copier:
    """Writes the loops of all pieces for one range of the split dimension."""

    frame: KernelFrame
    pieces: Sequence[Piece]
    strides: tuple[Index, ...]
    lanes: int
    split: int | None

    def emit(self, bounds: tuple[Index, Index] | None) -> None:
        for piece in self.pieces:
            self._piece(piece, bounds)

    def _piece(self, piece: Piece, bounds: tuple[Index, Index] | None) -> None:
        text, box = self.frame.text, piece.box
        ranges: list[tuple[Index, Index]] = [(0, size) for size in box.sizes]
        if bounds is not None and self.split is not None:
            corner = box.corner[self.split]
            low, high = text.isub(bounds[0], corner), text.isub(bounds[1], corner)
            if self.split in box.dims:
                axis = box.dims.index(self.split)
                ranges[axis] = (text.imax(low, 0), text.imin(high, box.sizes[axis]))
            else:
                # The piece is one slice along the split dimension: here or not here.
                here = text.binary(
                    "arith.andi",
                    text.compare("sle", text.as_value(low), text.i64(0)),
                    text.compare("sgt", text.as_value(high), text.i64(0)),
                )
                with text.when(here):
                    self._loops(piece, ranges)
                return
        self._loops(piece, ranges)

    def _loops(self, piece: Piece, ranges: Sequence[tuple[Index, Index]]) -> None:
        text, box = self.frame.text, piece.box
        reads = list(piece.strides) if piece.source is not None else [0] * len(box.dims)
        writes = [self.strides[dim] for dim in box.dims]
        loops: list[tuple[Index, Index, Index, Index]] = []
        for (low, high), read, write in zip(ranges, reads, writes, strict=True):
            if (low, high) == (0, 1):
                continue
            if loops and low == 0 and isinstance(high, int):
                before = loops[-1]
                joined = before[2] == text.imul(read, high) and before[3] == text.imul(write, high)
                if joined and isinstance(read, int) and isinstance(write, int):
                    loops[-1] = (text.imul(before[0], high), text.imul(before[1], high), read, write)
                    continue
            loops.append((low, high, read, write))
        start_read = piece.offset
        start_write = text.dot(box.corner, self.strides)
        self._nest(piece, loops, start_read, start_write)

    def _nest(
        self, piece: Piece, loops: Sequence[tuple[Index, Index, Index, Index]], read: Index, write: Index
    ) -> None:
        text = self.frame.text
        if len(loops) > 1:
            low, high, read_stride, write_stride = loops[0]
            with text.span(low, high) as loop:
                self._nest(
                    piece,
                    loops[1:],
                    text.iadd(read, text.imul(loop.index, read_stride)),
                    text.iadd(write, text.imul(loop.index, write_stride)),
                )
            return
        low, high, read_stride, write_stride = loops[0] if loops else (0, 1, 1, 1)
        # Copies move bytes, not numbers: i1 as its byte, narrow floats as integers.
        element = self.frame.buffers[-1].element
        moving = {"i1": "i8", "f16": "i16", "bf16": "i16"}.get(element, element)
        target = Buffer(self.frame.buffers[-1].pointer, moving)
        lanes = self.lanes if write_stride == 1 else 1
        fill: Value | None = None
        source: Buffer | None = None
        if piece.source is None:
            fill = text.constant(piece.number, element, lanes)
            if element in ("f16", "bf16"):
                fill = text.bitcast(fill, "i16")
            elif element == "i1":
                fill = text.cast("arith.extui", fill, "i8")
        else:
            source = Buffer(piece.source.pointer, moving)

        def move(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            at = text.iadd(low, index)
            value = fill
            if source is not None:
                where = text.iadd(read, text.imul(at, read_stride))
                value = text.strided_read(source, where, read_stride, lanes, mask)
            assert value is not None
            text.strided_write(value, target, text.iadd(write, text.imul(at, write_stride)), write_stride, mask)
            return carried

        text.strip(text.imax(text.isub(high, low), 0), lanes, move, unroll=4)
