"""The way of a register tile to memory: the region's fused body on accumulators, and the stores.

Vocabulary
    result space: the dimensions of the anchor's result. The last one is the *channel* (vector) dimension, all others
        together are the *rows*, numbered row-major.
    access: an operand that the body reads, or a result of the region.
    row stride: the one distance between rows of an access; 0 for an operand that does not vary along the rows, None
        where the rows do not collapse into one stride (a broadcast or a permutation among the row dimensions).

Steps: pointers to the tile's first element once per tile; operands without a row stride (bias, scalars) once per tile;
then row by row the other operands, the body, the stores. A light body runs on the accumulator registers. A heavy one
(gelu: 40 instructions a register) runs in a loop over the rows of a copy of the tile in scratch, so that its code
appears once and not once for each of 24 accumulators; the copy costs ``2 * rows * vectors`` L1 accesses.

Bytes moved: each operand and each result once per tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowerkit.mlir import ir
from lowerkit.targets.cpu.gemm.microkernel import Prefetch
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.linear_access import Access
from lowerkit.targets.cpu.text.region_values import Constant
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["TileEpilogue", "TilePlace", "make_tile_epilogue"]

# Bodies up to this many ops are written out for each accumulator register.
_LIGHT_OPS = 10


@dataclass(frozen=True)
class TilePlace:
    """Where a tile lies in the result space.

    Attributes:
        row: number of its first row.
        column: its first channel.
        masks: one mask per vector, None for whole vectors.
        per_line: consecutive rows; the others start ``line_stride`` rows further on.
        lines: how many such lines.
        line_stride: rows from one line to the next.
        pitch: rows of a tile in scratch from one line to the next; 0 where lines follow each other.
    """

    row: Index
    column: Index
    masks: Sequence[Value | None]
    per_line: Index
    lines: Index = 1
    line_stride: int = 0
    pitch: int = 0

    def distances(self) -> list[int]:
        """Distance of each row of the tile from the first; for a static tile."""
        assert isinstance(self.per_line, int)
        assert isinstance(self.lines, int)
        return [line * self.line_stride + at for line in range(self.lines) for at in range(self.per_line)]


@dataclass(frozen=True)
class _Rows:
    """An access seen from rows and channels."""

    access: Access
    row_stride: Index | None
    row_strides: tuple[Index, ...]
    channel_stride: Index


def make_tile_epilogue(region: RegionView, frame: KernelFrame) -> TileEpilogue | Refusal:
    """Returns the epilogue of a region whose anchor has channels last, or why it cannot run on tiles.

    Call this in the head of the kernel: dynamic strides are computed where the text stands.
    """
    epilogue = make_epilogue(region, frame)
    if isinstance(epilogue, Refusal):
        return epilogue
    if epilogue.body is not None and epilogue.body.uses_index:
        return Refusal("the epilogue reads linalg.index")
    assert region.anchor is not None
    shape = ir.RankedTensorType(region.anchor.operation.results[0].type)
    sizes = _result_sizes(region, frame, shape)
    if isinstance(sizes, Refusal):
        return sizes
    return TileEpilogue(epilogue, sizes, str(shape.element_type))


def _result_sizes(region: RegionView, frame: KernelFrame, shape: ir.RankedTensorType) -> list[Index] | Refusal:
    """Sizes of the anchor's result, dynamic ones taken from a region result of the same shape."""
    if shape.has_static_shape:
        return [int(size) for size in shape.shape]
    for number, type_ in enumerate(region.results):
        if list(type_.shape) == list(shape.shape):
            return list(frame.sizes[len(region.operands) + number])
    return Refusal("the sizes of the anchor's result are not those of a result of the region")


class TileEpilogue:
    """Writes the epilogue and stores of tiles into one kernel.

    Attributes:
        light: True when the body is cheap enough to be repeated for every accumulator register.
        sizes: the result space.
    """

    def __init__(self, epilogue: Epilogue, sizes: list[Index], element: str) -> None:
        self.epilogue = epilogue
        self.sizes = sizes
        # Each op on bf16 rounds in eight integer ops, where the CPU has no instruction for it.
        weight = 8 if element == "bf16" and not epilogue.frame.text.native_bf16 else 1
        self.light = weight * (1 + (epilogue.body.op_count if epilogue.body is not None else 0)) <= _LIGHT_OPS
        self._element = element
        self._text = epilogue.frame.text
        self._inputs = [self._rows(source) if isinstance(source, Access) else None for source in epilogue.inputs]
        self._stores = [(number, self._rows(access)) for number, access in epilogue.stores]

    @property
    def rows(self) -> Index:
        """Number of rows."""
        return self._text.iproduct(self.sizes[:-1])

    def _rows(self, access: Access) -> _Rows:
        dims = self.epilogue.dims
        strides = tuple(access.strides[dim] for dim in dims)
        return _Rows(access, self._row_stride(access, strides[:-1]), strides[:-1], strides[-1])

    def _row_stride(self, access: Access, strides: Sequence[Index]) -> Index | None:
        text = self._text
        axes = [axis for axis, size in enumerate(self.sizes[:-1]) if size != 1]
        if all(strides[axis] == 0 for axis in axes):
            return 0
        own = [access.positions[self.epilogue.dims[axis]] for axis in axes]
        channels = self.sizes[-1]
        last = access.positions[self.epilogue.dims[-1]] if channels != 1 else len(own)
        if [*own, last] == list(range(len(own) + 1)) and access.offset == 0:
            return channels  # every dimension in order: the operand lies as the result does, dynamic or not
        for outer, inner in pairwise(axes):
            size = self.sizes[inner]
            if not (isinstance(size, int) and isinstance(strides[inner], int) and isinstance(strides[outer], int)):
                return None
            if strides[outer] != text.imul(strides[inner], size):
                return None
        return strides[axes[-1]]

    def prefetches(self, place: TilePlace, lanes: int) -> list[Prefetch]:
        """What the rows of a tile read besides the sums (residuals) and write, to be fetched while these are computed.

        These lines lie in other cores' caches as often as not; touched at once when the sums are done, they would be
        waited for.
        """
        text = self._text
        if not (isinstance(place.per_line, int) and place.lines == 1):
            return []
        fetch: list[Prefetch] = []
        accesses = [(rows, False) for rows in self._inputs if rows is not None]
        for rows, write in [*accesses, *((rows, True) for _, rows in self._stores)]:
            if rows.row_stride in (0, None) or rows.channel_stride != 1:
                continue
            buffer, first = rows.access.buffer, self._base(rows, place)
            for line in range(-(-len(place.masks) * lanes * buffer.bytes // 64)):
                stride = text.imul(rows.row_stride or 0, buffer.bytes)
                fetch.append(Prefetch(text.offset(first, 64 * line, "i8"), place.per_line, 3, stride, write))
        return fetch

    # --- one tile ---------------------------------------------------------------------------------------------

    def store_registers(self, accumulators: Sequence[Value], place: TilePlace) -> None:
        """Applies the body to accumulators in registers, ``vectors`` for each row, and stores the results."""
        vectors = len(place.masks)
        bases, fixed = self._prepare(place, accumulators[0].lanes)
        for number, distance in enumerate(place.distances()):
            row = list(accumulators[number * vectors : (number + 1) * vectors])
            self._store_row(row, place, distance, bases, fixed)

    def store_rolled(self, tile: Buffer, lanes: int, place: TilePlace) -> None:
        """As :meth:`store_registers`, in loops over the rows of a copy of the tile (one row after another)."""
        text, vectors = self._text, len(place.masks)
        bases, fixed = self._prepare(place, lanes)

        def row_at(number: Index, distance: Index) -> None:
            first = text.imul(number, vectors * lanes)
            values = [text.read(tile, text.iadd(first, v * lanes), lanes) for v in range(vectors)]
            self._store_row(values, place, distance, bases, fixed)

        if place.lines == 1:
            with text.span(0, place.per_line) as loop:
                row_at(loop.index, loop.index)
            return
        with text.span(0, place.lines) as outer, text.span(0, place.per_line) as loop:
            number = text.iadd(text.imul(outer.index, place.pitch or place.per_line), loop.index)
            row_at(number, text.iadd(text.imul(outer.index, place.line_stride), loop.index))

    def _prepare(self, place: TilePlace, lanes: int) -> tuple[list[Value | None], dict[int, list[Value]]]:
        """Pointers of the inputs then stores at the tile's first element, and the inputs that the rows share."""
        text = self._text
        bases: list[Value | None] = []
        for rows in [*self._inputs, *(rows for _, rows in self._stores)]:
            if rows is None or rows.row_stride is None:
                bases.append(None)
                continue
            bases.append(self._base(rows, place))
        fixed: dict[int, list[Value]] = {}
        for number, source in enumerate(self.epilogue.inputs):
            if isinstance(source, Constant):
                assert self.epilogue.body is not None
                constant = text.constant(source.number, self.epilogue.body.inputs[number], lanes)
                fixed[number] = [constant] * len(place.masks)
        for number, rows in enumerate(self._inputs):
            if rows is not None and rows.row_stride == 0:
                fixed[number] = self._read_row(rows, bases[number], place, 0, lanes)
        return bases, fixed

    def _base(self, rows: _Rows, place: TilePlace) -> Value:
        """Pointer of an access with a row stride at the tile's first element."""
        text = self._text
        assert rows.row_stride is not None
        at = text.iadd(text.imul(place.row, rows.row_stride), text.imul(place.column, rows.channel_stride))
        at = text.iadd(at, rows.access.offset)
        return text.offset(rows.access.buffer.pointer, at, rows.access.buffer.element)

    def _read_row(self, rows: _Rows, base: Value | None, place: TilePlace, distance: Index, lanes: int) -> list[Value]:
        """The vectors of one row of an operand."""
        text = self._text
        here, at = self._locate(rows, base, place, distance)
        if rows.channel_stride == 0:
            return [text.broadcast(text.read(here, at), lanes)] * len(place.masks)
        return [
            text.strided_read(
                here, text.iadd(at, text.imul(rows.channel_stride, v * lanes)), rows.channel_stride, lanes, mask
            )
            for v, mask in enumerate(place.masks)
        ]

    def _locate(self, rows: _Rows, base: Value | None, place: TilePlace, distance: Index) -> tuple[Buffer, Index]:
        """Buffer and element of the first channel of a row."""
        text, buffer = self._text, rows.access.buffer
        if base is not None:
            assert rows.row_stride is not None
            return Buffer(base, buffer.element), text.imul(distance, rows.row_stride)
        point = text.unravel(text.iadd(place.row, distance), self.sizes[:-1])
        at = text.iadd(text.dot(point, rows.row_strides), rows.access.offset)
        return buffer, text.iadd(at, text.imul(place.column, rows.channel_stride))

    def _store_row(
        self,
        accumulators: list[Value],
        place: TilePlace,
        distance: Index,
        bases: list[Value | None],
        fixed: dict[int, list[Value]],
    ) -> None:
        text, body = self._text, self.epilogue.body
        lanes = accumulators[0].lanes
        operands = dict(fixed)
        for number, rows in enumerate(self._inputs):
            if rows is not None and number not in fixed:
                operands[number] = self._read_row(rows, bases[number], place, distance, lanes)
        places = [
            self._locate(rows, bases[len(self._inputs) + number], place, distance)
            for number, (_, rows) in enumerate(self._stores)
        ]
        for v, accumulator in enumerate(accumulators):
            rounded = text.narrow(accumulator, self._element)
            outputs: list[Value] = []
            if body is not None:
                arguments: list[Value | None] = []
                for number, source in enumerate(self.epilogue.inputs):
                    if number in operands:
                        arguments.append(operands[number][v])
                    else:
                        arguments.append(None if source is None else rounded)
                outputs = body.emit(text, arguments, lanes=lanes)
            for (number, rows), (buffer, at) in zip(self._stores, places, strict=True):
                value = rounded if number is None else outputs[number]
                stride = rows.channel_stride
                text.strided_write(value, buffer, text.iadd(at, text.imul(stride, v * lanes)), stride, place.masks[v])
