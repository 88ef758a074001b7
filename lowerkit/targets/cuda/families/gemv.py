"""Products of a few rows: every weight is read once, in vectors of 16 bytes, and multiplied without tensor cores.

Vocabulary
    row      of the result, eight at most; all of them are made by the block that reads the weights
    lane     a tile of weights: ``columns`` of the result by ``depth``, along which the sums of a thread are; the
             contiguous one of the two is that of the vectors
    trip     one tile of the loop over K

A tensor core would multiply 16 rows, most of them zeros, and wants its operands in shared memory first. Here a thread
loads weights, multiplies them with the same part of each row, and adds: sums stay in its registers to the end, where
the block adds them up. Columns are dealt out to as many blocks as keep the memory busy; K is not split, so there is
one launch.

Bytes: the weights once, the rows once a block (out of L2), the result once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.targets.cuda.families.gemm_problem import Gemm, read_gemm_region
from lowerkit.targets.cuda.families.gemm_tiles import asked_gemm, choose_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.model.cards import Card, card_of
from lowerkit.targets.cuda.model.estimate import LOAD, Work, estimate
from lowerkit.targets.cuda.model.measured_tiles import measured_tile
from lowerkit.targets.cuda.model.products import predict
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, element_bytes, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView

MOST_ROWS = 8
_VECTOR = 16
_LINE = 128
"""Bytes that a tile has along the contiguous dim at least: memory gives whole lines."""
_MOST_SUMS = 64
"""Sums of a thread at most: with weights and addresses they have to fit into its registers."""


@dataclass(frozen=True)
class Lane:
    """A tile of weights and the warps that take it."""

    columns: int
    depth: int
    warps: int

    def of_thread(self) -> int:
        """Weights that a thread holds."""
        return self.columns * self.depth // (32 * self.warps)


class GemvFamily(KernelFamily):
    """``lk.matmul`` and ``lk.integer_matmul`` of up to eight rows, of known sizes, where tensor cores are no faster."""

    name: ClassVar[str] = "gemv"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        read = read_gemm_region(region)
        if isinstance(read, Refusal):
            return read
        problem = read.problem
        if not isinstance(problem.rows, int) or problem.rows > MOST_ROWS:
            return Refusal(f"{render(problem.rows)} rows; at most {MOST_ROWS}")
        if not isinstance(problem.columns, int) or not isinstance(problem.depth, int):
            return Refusal("weights of an open size")
        if product(problem.batch) != 1:
            return Refusal("several products")
        if 1 not in problem.b_strides:
            return Refusal("weights that are contiguous along no dim")
        asked = asked_gemm(problem, level)
        if measured_tile(asked, level) is not None:
            return Refusal("a tile for tensor cores was measured")
        card = card_of(level)
        lane, seconds = choose_lane(problem, card)
        others = predict(asked, choose_tile(asked, level), card)
        if others < seconds:
            return Refusal(f"{seconds * 1e6:.2f} us are predicted, {others * 1e6:.2f} by tiles for tensor cores")
        return plan_gemv(read.frame, problem, read.epilogue, lane, read.result)


def choose_lane(problem: Gemm, card: Card) -> tuple[Lane, float]:
    """Returns the lane with the shortest prediction, and its seconds."""
    along_depth = problem.b_strides[0] == 1
    vector = max(1, _VECTOR // element_bytes(problem.b.element))
    found: list[tuple[float, int, Lane]] = []
    for warps in (1, 2, 4, 8):
        for held in (vector, 2 * vector, 4 * vector, 8 * vector):
            if held * _rows(problem) > _MOST_SUMS and held > vector:
                continue
            tile = 32 * warps * held
            for width in (vector, 2 * vector, *(vector << power for power in range(2, 9))):
                if width > tile or width * element_bytes(problem.b.element) < _LINE:
                    continue
                columns, depth = (tile // width, width) if along_depth else (width, tile // width)
                lane = Lane(columns, depth, warps)
                found.append((_seconds(problem, lane, card), -columns * depth, lane))
    seconds, _, lane = min(found, key=lambda each: each[:2])
    return lane, seconds


def _rows(problem: Gemm) -> int:
    assert isinstance(problem.rows, int), "it was looked at"
    return problem.rows


def _seconds(problem: Gemm, lane: Lane, card: Card) -> float:
    """Predicted seconds: the launch as the model prices it, and as long as its loads are under way.

    A block waits for the loads of each trip; blocks beside it on an SM load meanwhile. Bytes under way at a time over
    the time of a load are the bandwidth that is reached.
    """
    rows, columns, depth = (_int(size) for size in (problem.rows, problem.columns, problem.depth))
    item = element_bytes(problem.b.element)
    moved = columns * depth * item + rows * (columns + depth) * element_bytes(problem.a.element)
    blocks, trips = -(-columns // lane.columns), -(-depth // lane.depth)
    sums = lane.of_thread() * rows
    registers = min(255, 32 + sums + lane.of_thread() * item // 4)
    # Lanes that lie beyond the weights multiply zeros.
    work = Work(
        kind="f64" if problem.a.element == "f64" else "f32",
        flops=2 * rows * columns * depth,
        issued=2 * rows * blocks * lane.columns * trips * lane.depth,
        moved=moved,
        loaded=columns * depth * item + blocks * rows * depth * element_bytes(problem.a.element),
        blocks=blocks,
        threads=32 * lane.warps,
        registers=registers,
    )
    found = estimate(card, work)
    resident = min(found.occupancy.resident, -(-blocks // card.sms))
    under_way = min(blocks, card.sms) * resident * 32 * lane.warps * lane.of_thread() * item
    load = LOAD / card.clock
    waiting = (trips - 1) * load * max(1.0, blocks / (card.sms * max(found.occupancy.resident, 1)))
    streamed = max(moved / (under_way / load), waiting)
    return max(found.total, card.launch + streamed)


def _int(size: object) -> int:
    assert isinstance(size, int), "it was looked at"
    return size


def plan_gemv(frame: Frame, problem: Gemm, epilogue: Epilogue, lane: Lane, result: str) -> PlannedRegion:
    """Returns the launch of a product with a lane.

    Args:
        frame: of the region.
        problem: the product: rows, columns and depth are known, the batch is one.
        epilogue: what follows.
        lane: how the weights are dealt out.
        result: the element type of the anchor's result.
    """
    writer = KernelWriter()
    wide = ".to(tl.int64)" if frame.wide else ""
    columns, depth = _int(problem.columns), _int(problem.depth)
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    column = writer.let(f"{pid} * {lane.columns} + tl.arange(0, {lane.columns}){wide}", "column")
    there = None if columns % lane.columns == 0 else writer.let(f"{column} < {columns}", "there")
    sums = _write_sums(writer, frame, problem, lane, column, there)
    column_dim = len(problem.batch) + len(problem.row_sizes)
    sizes = (*problem.batch, *problem.row_sizes)
    for number, each in enumerate(sums):
        value = writer.let(converted(each, problem.accumulator, result), "value")
        axes = [Axis(column, (column_dim,), (problem.columns,), there)]
        if column_dim:
            axes.insert(0, Axis(str(number), tuple(range(column_dim)), sizes))
        epilogue.write(writer, value, axes)
    source = writer.source(len(frame.buffers), frame.dims)
    kernel = TritonKernel(GemvFamily.name, source, pointer_types(frame), frame.dims, lane.warps)
    bytes_ = [buffer.bytes for buffer in frame.buffers]
    written = total([each.bytes for each in frame.results])
    read = total(
        [bytes_[number] for number in sorted({problem.a.pointer, problem.b.pointer} | epilogue.read_operands())]
    )
    blocks = expression("ceildiv", columns, lane.columns)
    note = f"{lane.columns} columns x {lane.depth}, {lane.warps} warps, {-(-depth // lane.depth)} trips"
    return one_kernel(
        kernel, bytes_, len(frame.region.operands), blocks, note=note, flops=problem.flops, read=read, written=written
    )


def _write_sums(
    writer: KernelWriter, frame: Frame, problem: Gemm, lane: Lane, column: str, there: str | None
) -> list[str]:
    """Writes the loop over K; returns the sums of each row, in the order of the rows."""
    along_depth = problem.b_strides[0] == 1
    depth, wide = _int(problem.depth), ".to(tl.int64)" if frame.wide else ""
    sum_type = TYPES[problem.accumulator]
    shape = f"[{lane.columns}, {lane.depth}]" if along_depth else f"[{lane.depth}, {lane.columns}]"
    across, along = ("[:, None]", "[None, :]") if along_depth else ("[None, :]", "[:, None]")
    sums = [writer.fresh("sums") for _ in range(_rows(problem))]
    for each in sums:
        writer.line(f"{each} = tl.zeros({shape}, {sum_type})")
    steps = writer.let(f"tl.arange(0, {lane.depth}){wide}", "steps")
    with writer.block(f"for start in range(0, {depth}, {lane.depth}):"):
        at = writer.let(f"start + {steps}", "at")
        inside = None if depth % lane.depth == 0 else writer.let(f"{at} < {depth}", "inside")
        masks = [f"{mask}{place}" for mask, place in ((there, across), (inside, along)) if mask is not None]
        guard = f", mask={' & '.join(masks)}, other=0" if masks else ""
        down, right = problem.b_strides
        place = f"{render(problem.b.offset)} + ({column} * {render(right)}){across} + ({at} * {render(down)}){along}"
        weights = writer.let(f"tl.load(p{problem.b.pointer} + ({place}){guard})", "weights")
        weights = writer.let(_widened(weights, problem.b.element, problem.accumulator, unsigned=False))
        for number, each in enumerate(sums):
            offset, left = _row_offset(problem, number), render(problem.a_strides[1])
            guard = f", mask={inside}, other=0" if inside is not None else ""
            row = writer.let(f"tl.load(p{problem.a.pointer} + ({offset} + {at} * {left}){guard})", "row")
            row = writer.let(_widened(row, problem.a.element, problem.accumulator, unsigned=problem.unsigned))
            if problem.accumulator == "i32":
                writer.line(f"{each} += {weights} * {row}{along}")
            else:
                writer.line(f"{each} = tl.fma({weights}, {row}{along}, {each})")
    return [writer.let(f"tl.sum({each}, {1 if along_depth else 0})", "sum") for each in sums]


def _row_offset(problem: Gemm, number: int) -> str:
    return render(expression("add", problem.a.offset, expression("mul", problem.a_strides[0], number)))


def _widened(text: str, element: str, accumulator: str, *, unsigned: bool) -> str:
    if unsigned:
        text = f"{text}.to(tl.uint8, bitcast=True)"
    return text if element == accumulator else f"{text}.to({TYPES[accumulator]})"
