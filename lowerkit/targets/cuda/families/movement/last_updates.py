"""``set`` of many short slices: the last update of each position is found first, then the table is written once.

Three launches: a temporary with a number for each position is filled with -1; every update puts its own number there
where that is larger, in any order, by atomics, so what stands is the last one; each element takes its update or stays.
The result is that of a loop over the updates, every time.
"""

from __future__ import annotations

from lowerkit.targets.cuda.families.movement.scatter_problem import Scatter
from lowerkit.targets.cuda.families.movement.slices import joined_mask, slice_tile
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES
from lowerkit.targets.cuda.triton.tensors import Frame, coordinate_text, element_bytes, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, as_i64, render
from lowerkit.targets.plan import expression, total

_BLOCK = 1024


def by_last_update(family: str, frame: Frame, scatter: Scatter, epilogue: Epilogue) -> PlannedRegion:
    """Returns the launches."""
    element = "i64" if scatter.wide else "i32"
    pointers = (*pointer_types(frame), element)
    buffers = list(range(len(pointers)))
    length = scatter.table.sizes[scatter.axis]
    kept = expression("mul", length, element_bytes(element))
    indices = scatter.indices.bytes
    last = f"p{len(frame.buffers)}"

    def kernel(writer: KernelWriter, warps: int) -> TritonKernel:
        return TritonKernel(family, writer.source(len(pointers), frame.dims), pointers, frame.dims, warps)

    first = KernelWriter()
    number, mask = _flat(first, scatter, render(length))
    first.line(f"tl.store({last} + {number}, tl.full([{_BLOCK}], -1, {TYPES[element]}), mask={mask})")
    second = KernelWriter()
    number, mask = _flat(second, scatter, render(scatter.count))
    position = scatter.positions(second, number, mask)
    inside = second.let(f"{mask} & ({position} >= 0) & ({position} < {render(length)})", "inside")
    own = f"{number}.to({TYPES[element]})"
    second.line(f'tl.atomic_max({last} + {position}, {own}, mask={inside}, sem="relaxed")')
    third = KernelWriter()
    tile = slice_tile(third, scatter.table.sizes, scatter.axis + 1, wide=frame.wide)
    mask = joined_mask(third, tile.axes)
    mine = third.let(as_i64(coordinate_text(third, scatter.axis, [tile.place])), "mine")
    guard = f", mask={mask}, other=-1" if mask else ""
    update = third.let(f"tl.load({last} + {mine}{guard})", "update")
    found = third.let(f"{update} >= 0", "found")
    old = scatter.elements(third, tile.axes, mask)
    new = scatter.update(
        third, tile, third.let(f"tl.maximum({update}, 0)"), joined_mask(third, tile.axes, found), one=False
    )
    epilogue.write(third, third.let(f"tl.where({found}, {new}, {old})", "value"), tile.axes)
    table = scatter.table.bytes if scatter.filled is None else 0
    written = total([each.bytes for each in frame.results])
    launches = [
        PlannedLaunch(kernel(first, 4), buffers, expression("ceildiv", length, _BLOCK), 0, 0, kept),
        PlannedLaunch(kernel(second, 4), buffers, expression("ceildiv", scatter.count, _BLOCK), 0, indices, kept),
        PlannedLaunch(kernel(third, tile.warps), buffers, tile.blocks, 0, total([kept, table]), written),
    ]
    return planned_region(frame, launches, [kept], note=f"{tile.words}, the last update of each position first")


def _flat(writer: KernelWriter, scatter: Scatter, count: str) -> tuple[str, str]:
    """Returns the numbers of a block, and which there are."""
    wide = ".to(tl.int64)" if scatter.wide else ""
    number = writer.let(f"tl.program_id(0){wide} * {_BLOCK} + tl.arange(0, {_BLOCK}){wide}", "number")
    return number, writer.let(f"{number} < {count}", "mask")
