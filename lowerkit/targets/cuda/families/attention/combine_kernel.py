"""The second kernel of attention whose keys were dealt out: a block for each row, all splits of it at once."""

from __future__ import annotations

from lowerkit.targets.cuda.families.attention.flash_kernel import finish
from lowerkit.targets.cuda.families.attention.places import Pass
from lowerkit.targets.cuda.families.attention.tiles import MOST_SPLITS, power
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.tensors import Axis, Frame
from lowerkit.targets.cuda.triton.writer import KernelWriter, render


def combining_warps(going: Pass) -> int:
    """Returns the warps of a block: 32 numbers for each thread at most."""
    return max(1, min(8, _padded_splits(going) * power(going.problem.value_depth) // 1024))


def write_combine(frame: Frame, going: Pass, epilogue: Epilogue) -> str:
    """Returns the source of the kernel."""
    writer = KernelWriter()
    problem = going.problem
    wide = ".to(tl.int64)" if frame.wide else ""
    peaks, sums, totals = (len(frame.buffers) + each for each in range(3))
    flat = writer.let(f"tl.program_id(0){wide}", "row")
    rows = writer.let(render(going.rows), "rows")
    splits = writer.let(render(going.splits), "splits")
    split = writer.let(f"tl.arange(0, {_padded_splits(going)})", "split")
    there = writer.let(f"{split} < {splits}", "there")
    place = writer.let(f"({flat} // {rows} * {splits} + {split}) * {rows} + {flat} % {rows}", "place")
    peak = writer.let(f'tl.load(p{peaks} + {place}, mask={there}, other=float("-inf"))', "peak")
    weight = writer.let(f"tl.load(p{sums} + {place}, mask={there}, other=0.0)", "sums")
    best = writer.let(f"tl.max({peak}, 0)", "best")
    shift = writer.let(f'tl.where({best} == float("-inf"), 0.0, {best})', "shift")
    unit = f" * {problem.log2_unit!r}" if problem.natural else ""
    change = writer.let(f"tl.exp2(({peak} - {shift}){unit})", "change")
    lane = writer.let(f"tl.arange(0, {power(problem.value_depth)})", "lane")
    lanes = None if power(problem.value_depth) == problem.value_depth else f"{lane} < {problem.value_depth}"
    mask = f"{there}[:, None]" + (f" & ({lanes})[None, :]" if lanes else "")
    at = f"p{totals} + ({place}[:, None] * {problem.value_depth} + {lane}[None, :])"
    total = writer.let(f"tl.load({at}, mask={mask}, other=0.0)", "total")
    value = finish(
        writer,
        problem,
        f"tl.sum({weight} * {change}, 0)",
        writer.let(f"tl.sum({total} * {change}[:, None], 0)", "total"),
    )
    axes = [
        Axis(flat, (0, 1, 2), (problem.batch, problem.heads, problem.queries)),
        Axis(lane, (3,), (problem.value_depth,), lanes and writer.let(lanes, "lanes")),
    ]
    epilogue.write(writer, value, axes)
    return writer.source(len(frame.buffers) + 3, frame.dims)


def _padded_splits(going: Pass) -> int:
    most = going.splits if isinstance(going.splits, int) else MOST_SPLITS
    return 1 << (most - 1).bit_length()
