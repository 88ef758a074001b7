"""The AMX register tile of a bf16 GEMM: two by two tiles of 16 x 16 f32 sums, four products for four tile loads.

Vocabulary
    tile: one of eight registers of up to 16 rows of 64 bytes: ``height`` x 32 bf16 of A, 16 pairs x 16 columns of B,
        ``height`` x 16 f32 of C.
    step: 32 elements of depth.

The tiles are LLVM's ``x86_amx`` values made by the ``.internal`` intrinsics; LLVM assigns registers and writes the tile
configuration. Three rules keep that assignment free of copies and spills: every kernel uses one height, each sum starts
from a zero tile of its own, and a step is not unrolled. Sums leave through memory: a tile can only be stored.

AMX treats denormal inputs as zero and rounds sums to nearest even; products are exact in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.microkernel import Depth, Prefetch
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["STEP", "TILE_COLUMNS", "AmxTiles"]

STEP = 32
TILE_COLUMNS = 16
_TILE = "!llvm.x86_amx"
_ROW_BYTES = 64
_B_TILE = 16 * 32


@dataclass(frozen=True)
class AmxTiles:
    """Emits sums of ``2 * height`` rows by 32 columns.

    Attributes:
        text: where the ops go.
        height: rows of each of the two A tiles, at most 16.
    """

    text: KernelText
    height: int

    def accumulate(
        self,
        a: Sequence[Value],
        a_row: int,
        b: Value,
        loops: Sequence[Depth],
        target: Buffer,
        prefetches: Sequence[Prefetch] = (),
    ) -> None:
        """Sums one tile and stores it to ``target`` as ``[2 * height, 32]`` f32.

        Args:
            a: first element of the rows of each A tile.
            a_row: elements of A from one row to the next.
            b: first element of B, packed as ``matmul_tiles``.
            loops: the depth as nested loops, outermost first; the innermost counts steps, strides are elements of A.
                B advances by its two tiles each step.
            target: the sums.
            prefetches: what to fetch meanwhile.
        """
        text = self.text
        shape = [self._size(self.height), self._size(_ROW_BYTES)]
        pairs = self._size(16)
        width = shape[1]
        sums = [self._call("tilezero", [*shape]) for _ in range(4)]
        a_bytes, b_bytes = text.i64(2 * a_row), text.i64(_ROW_BYTES)
        total = 1
        for loop in loops:
            total *= loop.count

        def step(rows: Sequence[Value], b_at: Value, number: Index, values: Sequence[Value]) -> list[Value]:
            for prefetch in prefetches:
                assert isinstance(prefetch.lines, int), "the tiles of a block are known"
                lines = -(-prefetch.lines // total)
                base = text.offset(prefetch.start, text.imul(number, 64 * lines), "i8")
                for line in range(lines):
                    text.prefetch(text.offset(base, 64 * line, "i8"), prefetch.locality)
            left = [self._call("tileloadd64", [*shape, row, a_bytes]) for row in rows]
            right = [
                self._call("tileloadd64", [pairs, width, text.offset(b_at, half * _B_TILE, "bf16"), b_bytes])
                for half in range(2)
            ]
            return [
                self._call("tdpbf16ps", [shape[0], width, width, values[2 * i + j], left[i], right[j]])
                for i in range(2)
                for j in range(2)
            ]

        def nest(level: int, rows: Sequence[Value], number: Index, values: Sequence[Value]) -> list[Value]:
            if level == len(loops):
                b_at = text.offset(b, text.imul(number, 2 * _B_TILE), "bf16")
                return step(rows, b_at, number, values)
            loop = loops[level]
            inside = 1
            for inner in loops[level + 1 :]:
                inside *= inner.count
            if loop.count == 1:
                return nest(level + 1, rows, number, values)
            with text.span(0, loop.count, 1, values) as span:
                moved = [text.offset(row, text.imul(span.index, loop.a_stride), "bf16") for row in rows]
                now = text.iadd(number, text.imul(span.index, inside))
                text.yield_(nest(level + 1, moved, now, span.carried))
            return span.results

        results = nest(0, a, 0, sums)
        stride = text.i64(4 * 2 * TILE_COLUMNS)
        for number, value in enumerate(results):
            i, j = divmod(number, 2)
            at = text.offset(target.pointer, i * self.height * 2 * TILE_COLUMNS + j * TILE_COLUMNS, "f32")
            operands = [*shape, at, stride, value]
            names = ", ".join(map(str, operands))
            types = ", ".join(operand.type for operand in operands)
            text.line(f'llvm.call_intrinsic "llvm.x86.tilestored64.internal"({names}) : ({types}) -> ()')

    def _size(self, count: int) -> Value:
        return self.text.op(f"arith.constant {count} : i16", "i16")

    def _call(self, name: str, operands: Sequence[Value]) -> Value:
        names = ", ".join(map(str, operands))
        types = ", ".join(operand.type for operand in operands)
        return self.text.op(f'llvm.call_intrinsic "llvm.x86.{name}.internal"({names}) : ({types}) -> {_TILE}', _TILE)
