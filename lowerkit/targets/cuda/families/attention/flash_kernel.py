"""The kernel of attention: a tile of queries stays, tiles of keys and values pass by, the softmax is done on the way.

Vocabulary
    matrix   the queries that share keys and values: those of one head, or, where there are few, those of all heads of
             a group (``stacked``), which lie behind one another
    peak     the largest score of a row so far; ``sums`` its sum of weights, ``total`` its sum of weighted values, both
             relative to the peak
    split    a share of the keys; where there are several, peak, sums and total of each go to memory, and another
             kernel combines them

Keys that no row of the tile may see are not read; tiles of keys that all rows see whole are not masked.

Bytes: queries and result once; keys and values once for each tile of rows, from the L2 cache behind the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cuda.families.attention.problem import Attention
from lowerkit.targets.cuda.families.attention.tiles import AttentionTile, power, runs_of
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.scalars import converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, Tensor, offset_text
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product


@dataclass(frozen=True)
class Pass:
    """One way to go over an attention.

    Attributes:
        tile: its tile.
        stacked: whether a matrix holds the queries of a whole group.
        splits: shares of the keys.
        partial: numbers of the pointers to peak, sums and total of each split; None where there is one.
    """

    problem: Attention
    tile: AttentionTile
    stacked: bool
    splits: KernelExpr = 1
    partial: tuple[int, int, int] | None = None

    @property
    def matrices(self) -> KernelExpr:
        """How many there are."""
        heads = self.problem.key_heads if self.stacked else self.problem.heads
        return product([self.problem.batch, heads])

    @property
    def rows(self) -> KernelExpr:
        """Rows of a matrix."""
        return expression("mul", self.problem.queries, self.problem.group if self.stacked else 1)

    @property
    def tiles(self) -> KernelExpr:
        """Tiles of rows of a matrix."""
        return expression("ceildiv", self.rows, self.tile.rows)

    @property
    def blocks(self) -> KernelExpr:
        """Of the grid."""
        return product([self.matrices, self.tiles, self.splits])


class _Text:
    """The names in the kernel that is being written."""

    def __init__(self, writer: KernelWriter, frame: Frame, going: Pass) -> None:
        self.writer, self.going, self.problem = writer, going, going.problem
        self.wide = ".to(tl.int64)" if frame.wide else ""
        tile, problem = going.tile, going.problem
        pid = writer.let(f"tl.program_id(0){self.wide}", "pid")
        self.split = "0"
        if going.splits != 1:
            self.splits = writer.let(render(going.splits), "splits")
            self.split = writer.let(f"{pid} % {self.splits}", "split")
            pid = writer.let(f"{pid} // {self.splits}", "pid")
        if going.tiles == 1:
            self.matrix, number = pid, "0"
        else:
            tiles = writer.let(render(going.tiles), "tiles")
            self.matrix = writer.let(f"{pid} // {tiles}", "matrix")
            number = writer.let(f"{pid} % {tiles}", "tile")
            if problem.causal:  # the tiles that see most keys begin first
                number = writer.let(f"{tiles} - 1 - {number}", "tile")
        self.first = writer.let(f"{number} * {tile.rows}", "first")
        self.row = writer.let(f"({self.first} + tl.arange(0, {tile.rows}){self.wide})[:, None]", "row")
        whole = isinstance(going.rows, int) and going.rows % tile.rows == 0
        self.row_mask = None if whole else writer.let(f"{self.row} < {render(going.rows)}", "rows")
        self.key_number = writer.let(f"tl.arange(0, {tile.keys})", "key")
        self.depth = [Lanes(writer, *run) for run in runs_of(problem.depth, tile.lanes)]
        self.value_depth = [Lanes(writer, *run) for run in runs_of(problem.value_depth, tile.lanes)]

    def row_axes(self) -> list[Axis]:
        """The axes over batch, head and query of the rows."""
        problem = self.problem
        sizes = (problem.batch, problem.heads, problem.queries)
        if self.going.stacked:
            flat = self.writer.let(f"{self.matrix} * {render(self.going.rows)} + {self.row}", "flat")
            return [Axis(flat, (0, 1, 2), sizes, self.row_mask)]
        return [Axis(self.matrix, (0, 1), sizes[:2]), Axis(self.row, (2,), sizes[2:], self.row_mask)]

    def query_number(self) -> str:
        """The query m of each row."""
        if not self.going.stacked:
            return self.row
        return self.writer.let(f"{self.row} % {render(self.problem.queries)}", "query")

    def key_base(self, tensor: Tensor) -> str:
        """The pointer to the keys or values of the matrix."""
        problem = self.problem
        head = self.matrix
        if not self.going.stacked and problem.group > 1:
            head = self.writer.let(f"{self.matrix} // {problem.group}", "shared")
        axis = Axis(head, (0, 1), (problem.batch, problem.key_heads))
        place = offset_text(self.writer, [*tensor.strides[:2], 0, 0], tensor.offset, [axis])
        return self.writer.let(f"p{tensor.pointer} + ({place})", "base")

    def key_range(self) -> tuple[str, str, str | None]:
        """First key of the block, the one behind the last, and up to where all rows see all keys: None for nowhere."""
        writer, tile, problem = self.writer, self.going.tile, self.problem
        start, end = "0", render(problem.keys)
        if problem.causal:
            # A matrix of several heads has all queries in it.
            last = f"{self.first} + {tile.rows}" if not self.going.stacked else render(problem.queries)
            end = writer.let(f"tl.minimum({last}, {end})", "end")
        if self.going.splits != 1:
            share = writer.let(f"(({end} + {tile.keys - 1}) // {tile.keys} + {self.splits} - 1) // {self.splits}")
            start = writer.let(f"{self.split} * {share} * {tile.keys}", "start")
            end = writer.let(f"tl.minimum({start} + {share} * {tile.keys}, {end})", "end")
        if problem.causal and self.going.stacked:
            return start, end, None
        if problem.causal:
            seen = writer.let(f"tl.minimum({self.first} + 1, {end})")
        elif end.isdecimal():
            whole = int(end) // tile.keys * tile.keys
            return start, end, str(whole) if whole else None
        else:
            seen = end
        full = writer.let(f"{start} + tl.maximum({seen} - {start}, 0) // {tile.keys} * {tile.keys}", "full")
        return start, end, full


class Lanes:
    """A run of features, padded to a power of two."""

    def __init__(self, writer: KernelWriter, start: int, count: int) -> None:
        self.padded = power(count)
        lanes = f"tl.arange(0, {self.padded})"
        self.number = writer.let(f"{start} + {lanes}" if start else lanes, "lane")
        self.row = writer.let(f"{self.number}[None, :]", "lane")
        self.column = writer.let(f"{self.number}[:, None]", "lane")
        cut = self.padded != count
        self.row_mask = writer.let(f"{self.row} < {start + count}", "lanes") if cut else None
        self.column_mask = writer.let(f"{self.column} < {start + count}", "lanes") if cut else None


def write_attention(frame: Frame, going: Pass, epilogue: Epilogue) -> str:
    """Returns the source of the kernel; with partial results the epilogue is left to the kernel that combines."""
    writer = KernelWriter()
    text = _Text(writer, frame, going)
    problem, tile = going.problem, going.tile
    queries = [] if tile.again else [_query(text, lanes, "") for lanes in text.depth]
    peak, sums = (writer.fresh(name) for name in ("peak", "sums"))
    totals = [writer.fresh("total") for _ in text.value_depth]
    writer.line(f'{peak} = tl.full(({tile.rows},), float("-inf"), tl.float32)')
    writer.line(f"{sums} = tl.zeros(({tile.rows},), tl.float32)")
    for total, lanes in zip(totals, text.value_depth, strict=True):
        writer.line(f"{total} = tl.zeros(({tile.rows}, {lanes.padded}), tl.float32)")
    state = _State(queries, peak, sums, totals)
    keys, values = text.key_base(problem.key), text.key_base(problem.value)
    mask = _mask_rows(text)
    start, end, full = text.key_range()
    if full is not None:
        with writer.block(f"for at in range({start}, {full}, {tile.keys}):"):
            _step(text, state, keys, values, mask, None)
    if not (full is not None and full == end):
        with writer.block(f"for at in range({full or start}, {end}, {tile.keys}):"):
            _step(text, state, keys, values, mask, end)
    if going.partial is not None:
        _write_partial(text, state, going.partial)
    else:
        for total, lanes in zip(totals, text.value_depth, strict=True):
            value = finish(writer, problem, f"{sums}[:, None]", total)
            axis = Axis(lanes.row, (3,), (problem.value_depth,), lanes.row_mask)
            epilogue.write(writer, value, [*text.row_axes(), axis])
    return writer.source(len(frame.buffers) + (3 if going.partial else 0), frame.dims)


@dataclass(frozen=True)
class _State:
    """Names of what is kept: runs of queries, none where they are loaded again, and what is known of the rows."""

    queries: list[str]
    peak: str
    sums: str
    totals: list[str]


def _query(text: _Text, lanes: Lanes, place: str) -> str:
    """Loads a run of features of the queries; ``place`` is added to where they are."""
    query = text.problem.query
    axes = [*text.row_axes(), Axis(lanes.row, (3,), (text.problem.depth,), lanes.row_mask)]
    offset = offset_text(text.writer, query.strides, query.offset, axes)
    return _load(text.writer, f"p{query.pointer} + ({offset}){place}", [text.row_mask, lanes.row_mask])


def _mask_rows(text: _Text) -> str | None:
    """Pointers to the first elements of the mask's rows, in their shape or one for all."""
    mask = text.problem.mask
    if mask is None:
        return None
    axes = [axis for axis in text.row_axes() if any(mask.strides[number] != 0 for number in axis.dims)]
    place = offset_text(text.writer, [*mask.strides[:3], 0], mask.offset, axes)
    return text.writer.let(f"p{mask.pointer} + ({place})", "masks")


def _step(text: _Text, state: _State, keys: str, values: str, mask: str | None, end: str | None) -> None:
    """Writes what happens to a tile of keys; ``end``: keys from there on are not seen, and causality is looked at."""
    writer, problem = text.writer, text.problem
    at = writer.let(f"at{text.wide}")
    across, down = (writer.let(f"{text.key_number}{side}", "key") for side in ("[None, :]", "[:, None]"))
    number = writer.let(f"{at} + {across}", "key") if end is not None else ""
    inside = writer.let(f"{number} < {end}", "inside") if end is not None else None
    below = writer.let(f"{at} + {down} < {end}", "inside") if end is not None else None
    precision = ', input_precision="tf32x3"' if problem.query.element == "f32" else ""
    stride, step = (render(each) for each in problem.key.strides[2:])
    # What depends on the loop is not kept in registers: nothing is added, but Triton does not know that.
    again = f" + tl.minimum({at}, 0)"
    score = ""
    for number_of, lanes in enumerate(text.depth):
        query = state.queries[number_of] if state.queries else _query(text, lanes, again)
        place = f"{_advanced(writer, keys, at, problem.key)} + ({across} * {stride} + {lanes.column} * {step})"
        key = _load(writer, place, [inside, lanes.column_mask])
        score = writer.let(f"tl.dot({query}, {key}{f', {score}' if score else ''}{precision})", "score")
    score = _masked(text, score, at, across, mask, inside)
    if end is not None:
        seen = inside
        if problem.causal:
            seen = writer.let(f"{inside} & ({number} <= {text.query_number()})", "seen")
        score = writer.let(f'tl.where({seen}, {score}, float("-inf"))', "score")
    best = f"tl.max({score}, 1)"
    factor = problem.scale * math.log2(math.e)
    peak = writer.let(f"tl.maximum({state.peak}, {best if problem.natural else f'{best} * {factor!r}'})", "peak")
    shift = writer.let(f'tl.where({peak} == float("-inf"), 0.0, {peak})', "shift")
    if problem.natural:
        unit = repr(problem.log2_unit)
        weight = writer.let(f"tl.exp2(({score} - {shift}[:, None]) * {unit})", "weight")
        change = writer.let(f"tl.exp2(({state.peak} - {shift}) * {unit})", "change")
    else:
        weight = writer.let(f"tl.exp2(tl.fma({score}, {factor!r}, -{shift}[:, None]))", "weight")
        change = writer.let(f"tl.exp2({state.peak} - {shift})", "change")
    writer.line(f"{state.sums} = {state.sums} * {change} + tl.sum({weight}, 1)")
    narrow = writer.let(converted(weight, "f32", problem.value.element), "weight")
    stride, step = (render(each) for each in problem.value.strides[2:])
    for total, lanes in zip(state.totals, text.value_depth, strict=True):
        place = f"{_advanced(writer, values, at, problem.value)} + ({down} * {stride} + {lanes.row} * {step})"
        value = _load(writer, place, [below, lanes.row_mask])
        writer.line(f"{total} = tl.dot({narrow}, {value}, {total} * {change}[:, None]{precision})")
    writer.line(f"{state.peak} = {peak}")


def _masked(text: _Text, score: str, at: str, across: str, rows: str | None, inside: str | None) -> str:
    writer, problem, mask = text.writer, text.problem, text.problem.mask
    if problem.natural:
        score = writer.let(f"{score} * {problem.scale!r}", "score")
    if mask is None:
        return score
    stride = mask.strides[3]
    along = "" if stride == 0 else f" + {at} * {render(stride)} + {across} * {render(stride)}"
    guards = [text.row_mask if any(each != 0 for each in mask.strides[:3]) and not _scalar_rows(text, mask) else None]
    guards.append(inside if stride != 0 else None)
    found = _load(writer, f"{rows}{along}", guards, "0" if mask.element == "i1" else "0.0")
    if mask.element != "i1":
        return writer.let(f"{score} + {found}.to(tl.float32)", "score")
    shown = writer.let(f"{found} != 0", "shown")
    if problem.fill is None:
        return writer.let(f'{score} + tl.where({shown}, 0.0, float("-inf"))', "score")
    fill = f'float("{problem.fill}")' if math.isinf(problem.fill) or math.isnan(problem.fill) else repr(problem.fill)
    return writer.let(f"tl.where({shown}, {score}, {fill})", "score")


def _scalar_rows(text: _Text, mask: Tensor) -> bool:
    """Whether all rows of a matrix see one row of the mask."""
    return not text.going.stacked and mask.strides[2] == 0


def _advanced(writer: KernelWriter, base: str, at: str, tensor: Tensor) -> str:
    return f"{base} + {at} * {render(tensor.strides[2])}"


def _load(writer: KernelWriter, place: str, masks: Sequence[str | None], other: str = "0.0") -> str:
    found = [each for each in masks if each is not None]
    guard = f", mask={' & '.join(found)}, other={other}" if found else ""
    return writer.let(f"tl.load({place}{guard})", "x")


def _write_partial(text: _Text, state: _State, pointers: tuple[int, int, int]) -> None:
    writer = text.writer
    base = writer.let(f"({text.matrix} * {text.splits} + {text.split}) * {render(text.going.rows)}", "place")
    place = writer.let(f"{base} + {text.row}", "place")
    rows = f", mask={text.row_mask}" if text.row_mask else ""
    for pointer, value in zip(pointers[:2], (state.peak, state.sums), strict=True):
        writer.line(f"tl.store(p{pointer} + {place}, {value}[:, None]{rows})")
    for total, lanes in zip(state.totals, text.value_depth, strict=True):
        masks = [each for each in (text.row_mask, lanes.row_mask) if each is not None]
        guard = f", mask={' & '.join(masks)}" if masks else ""
        at = f"{place} * {text.problem.value_depth} + {lanes.row}"
        writer.line(f"tl.store(p{pointers[2]} + ({at}), {total}{guard})")


def finish(writer: KernelWriter, problem: Attention, sums: str, total: str) -> str:
    """Writes what becomes of sums of weights and of weighted values; returns the result, of its element type."""
    sums = writer.let(sums, "sums")
    divisor = writer.let(f"tl.where({sums} == 0.0, 1.0, {sums})", "divisor")
    if problem.empty_rows == "nan":
        nothing = f"{sums} == 0.0"
        if not isinstance(problem.keys, int):
            nothing = f"({nothing}) & ({render(problem.keys)} > 0)"
        divisor = writer.let(f'tl.where({nothing}, float("nan"), {divisor})', "divisor")
    value = writer.let(f"tl.div_rn({total}, tl.broadcast_to({divisor}, {total}.shape))", "value")
    if problem.empty_rows == "guarded":
        value = writer.let(f"tl.where({sums} != {sums}, 0.0, {value})", "value")
    return writer.let(converted(value, "f32", problem.result), "value")
