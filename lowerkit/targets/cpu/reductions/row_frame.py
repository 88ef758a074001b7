"""What softmax and the row norms share: rows of the anchor's last dimensions, their tasks, loads and stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["Rows", "anchor_operand", "rows_of_anchor"]

# Elements of a task: a row-wise kernel does some 10 to 30 vector ops per vector, so this is a few microseconds.
_GRAIN = 8192


@dataclass
class Rows:
    """The rows of an anchored region.

    Attributes:
        frame: the kernel.
        source: the anchor's first operand.
        epilogue: over (row, place in the row).
        count: how many rows there are.
        count_extent: the same for the runtime.
        length: elements of a row.
        length_extent: the same for the runtime.
        compute: f32, or f64 for f64 data.
        lanes: vector width for ``compute``.
    """

    frame: KernelFrame
    source: Buffer
    epilogue: Epilogue
    count: Index
    count_extent: KernelExpr
    length: Index
    length_extent: KernelExpr
    compute: str
    lanes: int

    def load(self, row_start: Index, index: Index, mask: Value | None) -> Value:
        """Returns elements of a row in the compute type; masked lanes are 0."""
        text = self.frame.text
        return text.widen(text.read(self.source, text.iadd(row_start, index), self.lanes, mask), self.compute)

    def store(self, value: Value, row: Index, index: Index, mask: Value | None) -> None:
        """Rounds results to the anchor's type and sends them through the epilogue."""
        narrow = self.frame.text.narrow(value, self.source.element)
        self.epilogue.store(narrow, [row, index], 1, mask)

    def each_row(self, emit: Callable[[Index, Index], None]) -> KernelExpr:
        """Opens the tasks; ``emit(start, row)`` writes one row. Returns the task count."""
        text = self.frame.text
        rows = max(1, _GRAIN // self.length) if isinstance(self.length, int) else 1
        with self.frame.tasks() as task:
            first = text.imul(task, rows)
            with text.span(first, text.imin(self.count, text.iadd(first, rows))) as loop:
                emit(text.imul(loop.index, self.length), loop.index)
        return expression("ceildiv", self.count_extent, rows)


def anchor_operand(region: RegionView, frame: KernelFrame, number: int) -> Located | Refusal:
    """Returns where the anchor's operand lies, which must be a kernel buffer."""
    assert region.anchor is not None
    source = source_of(region.anchor.operation.operands[number], frame)
    if not isinstance(source, Located):
        return Refusal(f"operand {number} of the anchor is computed inside the region")
    return source


def rows_of_anchor(region: RegionView, cpu: CpuFeatures, row_rank: int) -> Rows | Refusal:
    """Returns the rows of the anchor's first operand: its last ``row_rank`` dimensions form one row."""
    assert region.anchor is not None
    type_ = ir.RankedTensorType(region.anchor.operation.operands[0].type)
    frame = KernelFrame(region.buffer_types, region.invariant)
    source = anchor_operand(region, frame, 0)
    if isinstance(source, Refusal):
        return source
    if source.buffer.element not in ("f32", "f16", "bf16", "f64"):
        return Refusal(f"rows of {source.buffer.element}")
    epilogue = make_epilogue(region, frame)
    if isinstance(epilogue, Refusal):
        return epilogue
    split = type_.rank - row_rank
    row = list(range(split, type_.rank))
    merged = epilogue.collapsed([list(range(split)), row], 1)
    if isinstance(merged, Refusal):
        return merged
    sizes, extents = source.sizes, frame.extents[source.operand]
    if len(extents) != len(sizes):
        extents = list(type_.shape)
    compute = "f64" if source.buffer.element == "f64" else "f32"
    return Rows(
        frame=frame,
        source=source.buffer,
        epilogue=merged,
        count=frame.text.iproduct([sizes[dim] for dim in range(split)]),
        count_extent=product([extents[dim] for dim in range(split)]),
        length=frame.text.iproduct([sizes[dim] for dim in row]),
        length_extent=product([extents[dim] for dim in row]),
        compute=compute,
        lanes=cpu.lanes(64 if compute == "f64" else 32),
    )
