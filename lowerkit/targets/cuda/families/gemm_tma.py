"""Writes the kernels of a product whose operands the TMA unit loads.

One thread asks for a box, whose coordinates are all that it needs; what lies beyond a matrix arrives as zeros, so that
no load has a mask, whatever the sizes are. Sums are in registers, and are stored in pieces of some columns, so that
neither the epilogue nor the exchange between threads that makes stores vectors of 16 bytes needs many registers or
much shared memory.

A **persistent** kernel has a block for each SM, which makes one tile after the other. Triton makes one loop of those
over tiles and over K, so that the first steps of a tile are loaded while the one before is multiplied and stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.families.gemm_kernel import store_part
from lowerkit.targets.cuda.families.gemm_maps import DescribedGemm
from lowerkit.targets.cuda.families.gemm_places import Place, count_tiles, find_place
from lowerkit.targets.cuda.families.gemm_problem import Gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.model.tma_tiles import pieces_of, runs_of
from lowerkit.targets.cuda.triton.boundary import write_boundary, write_fence
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import POINTERS, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, element_bytes, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import product


@dataclass(frozen=True)
class _Stored:
    """How sums are stored: as parts of K, or by the epilogue of a result of some element type."""

    epilogue: Epilogue | None
    result: str

    @property
    def widest(self) -> int:
        """Bytes of the widest element that is stored."""
        if self.epilogue is None:
            return 4
        return max(element_bytes(each.element) for each, _, _ in self.epilogue.outputs)

    def write(self, writer: KernelWriter, frame: Frame, place: Place, row: Axis, column: Axis, value: str) -> None:
        if self.epilogue is None:
            store_part(writer, frame, place, row, column, value)
        else:
            self.epilogue.write(writer, value, [*place.batch, row, column])


def write_tma_gemm(
    family: str, frame: Frame, described: DescribedGemm, problem: Gemm, tile: GemmTile, epilogue: Epilogue, result: str
) -> TritonKernel:
    """Writes the kernel of a product whose K is not split; its descriptors are those of :func:`descriptors_of`."""
    kernel = _kernel(frame, described, problem, tile, _Stored(epilogue, result))
    return _compiled(family, frame, described, tile, kernel, pointer_types(frame))


def write_tma_parts(family: str, frame: Frame, described: DescribedGemm, problem: Gemm, tile: GemmTile) -> TritonKernel:
    """Writes the kernel that sums each part of K into a temporary [part, batch, rows, columns] behind the buffers."""
    kernel = _kernel(frame, described, problem, tile, _Stored(None, problem.accumulator))
    return _compiled(family, frame, described, tile, kernel, (*pointer_types(frame), POINTERS[problem.accumulator]))


def descriptors_of(described: DescribedGemm, tile: GemmTile) -> tuple[str, ...]:
    """Returns the descriptors of a kernel: that of A, then one of B for each run of columns."""
    return (
        described.a.descriptor(tile.m, tile.k),
        *(described.b.descriptor(tile.k, run) for run in runs_of(tile.n)),
    )


def _compiled(
    family: str,
    frame: Frame,
    described: DescribedGemm,
    tile: GemmTile,
    writer: KernelWriter,
    pointers: tuple[str, ...],
) -> TritonKernel:
    descriptors = descriptors_of(described, tile)
    source = writer.source(len(pointers), frame.dims, len(descriptors))
    return TritonKernel(family, source, pointers, frame.dims, tile.warps, tile.stages, descriptors)


def _kernel(frame: Frame, described: DescribedGemm, problem: Gemm, tile: GemmTile, stored: _Stored) -> KernelWriter:
    writer = KernelWriter()
    if not tile.persistent:
        _write_tile(writer, frame, described, problem, tile, stored, writer.let("tl.program_id(0)", "pid"))
        return writer
    count = render(product([*problem.batch, *count_tiles(problem, tile)]))
    last = writer.let(f"tl.cast({count}, tl.int32)", "last")
    with writer.block(f"for pid in tl.range(tl.program_id(0), {last}, tl.num_programs(0), flatten=True):"):
        _write_tile(writer, frame, described, problem, tile, stored, "pid")
    return writer


def _write_tile(
    writer: KernelWriter,
    frame: Frame,
    described: DescribedGemm,
    problem: Gemm,
    tile: GemmTile,
    stored: _Stored,
    pid: str,
) -> None:
    place = find_place(writer, frame, problem, tile, pid, narrow=True)
    sums = _sums(writer, described, problem, tile, place)
    row = place.rows(writer, tile.m)
    start = 0
    for run, each in zip(runs_of(tile.n), sums, strict=True):
        value = writer.let(converted(each, problem.accumulator, stored.result), "value")
        if tile.persistent:
            write_boundary(writer, pid)
        pieces = _split(writer, value, tile.m, run, pieces_of(tile, run, stored.widest))
        width = run // len(pieces)
        for piece in pieces:
            column = place.columns(writer, width, start, tile.n)
            stored.write(writer, frame, place, row, column, piece)
            start += width
    if tile.persistent:
        write_fence(writer, pid)


def _sums(writer: KernelWriter, described: DescribedGemm, problem: Gemm, tile: GemmTile, place: Place) -> list[str]:
    """Writes the loop over K; returns the name of the sums of each run."""
    runs = runs_of(tile.n)
    row, column = (writer.let(f"tl.cast({at}, tl.int32)", "at") for at in (place.first_row, place.first_column))
    batch = writer.let(f"tl.cast({place.batch[0].text}, tl.int32)", "number") if place.batch else ""
    first, last = "0", f"tl.cast({render(problem.depth)}, tl.int32)"
    if tile.split > 1:
        assert isinstance(problem.depth, int), "an open K is not split"
        part = -(-problem.depth // (tile.split * tile.k)) * tile.k
        first = writer.let(f"{place.part} * {part}", "first")
        last = f"{first} + {part}"
    sums = [writer.fresh("sums") for _ in runs]
    for name, run in zip(sums, runs, strict=True):
        writer.line(f"{name} = tl.zeros(({tile.m}, {run}), tl.float32)")
    with writer.block(f"for start in range({first}, {last}, {tile.k}):"):
        left = writer.let(described.a.load("d0", batch, (row, "start"), (tile.m, tile.k)), "x")
        begin = 0
        for number, (name, run) in enumerate(zip(sums, runs, strict=True)):
            at = f"{column} + {begin}" if begin else column
            right = writer.let(described.b.load(f"d{number + 1}", batch, ("start", at), (tile.k, run)), "x")
            writer.line(f"{name} = tl.dot({left}, {right}, {name})")
            begin += run
    return sums


def _split(writer: KernelWriter, value: str, rows: int, columns: int, count: int) -> list[str]:
    """Returns the names of pieces of a tile, from the first columns on; each thread keeps what it has."""
    names, width = [value], columns
    while len(names) < count:
        width //= 2
        halves: list[str] = []
        for each in names:
            left, right = writer.fresh("piece"), writer.fresh("piece")
            writer.line(f"{left}, {right} = {each}.reshape({rows}, 2, {width}).permute(0, 2, 1).split()")
            halves += [left, right]
        names = halves
    return names
