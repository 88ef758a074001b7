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

from lowerkit.targets.cuda.families.attention.places import Lanes, Pass, Places
from lowerkit.targets.cuda.families.attention.problem import Attention
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.scalars import converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, Tensor, offset_text
from lowerkit.targets.cuda.triton.writer import KernelWriter, render


def write_attention(frame: Frame, going: Pass, epilogue: Epilogue) -> str:
    """Returns the source of the kernel; with partial results the epilogue is left to the kernel that combines."""
    writer = KernelWriter()
    places = Places(writer, frame, going)
    problem, tile = going.problem, going.tile
    queries = [] if tile.again else [_query(places, lanes, "") for lanes in places.depth]
    peak, sums = (writer.fresh(name) for name in ("peak", "sums"))
    totals = [writer.fresh("total") for _ in places.value_depth]
    writer.line(f'{peak} = tl.full(({tile.rows},), float("-inf"), tl.float32)')
    writer.line(f"{sums} = tl.zeros(({tile.rows},), tl.float32)")
    for total, lanes in zip(totals, places.value_depth, strict=True):
        writer.line(f"{total} = tl.zeros(({tile.rows}, {lanes.padded}), tl.float32)")
    state = _State(queries, peak, sums, totals)
    keys, values = places.key_base(problem.key), places.key_base(problem.value)
    mask = _mask_rows(places)
    start, end, full = places.key_range()
    if full is not None:
        with writer.block(f"for at in range({start}, {full}, {tile.keys}):"):
            _step(places, state, keys, values, mask, None)
    if not (full is not None and full == end):
        with writer.block(f"for at in range({full or start}, {end}, {tile.keys}):"):
            _step(places, state, keys, values, mask, end)
    buffers = len(frame.buffers)
    if going.splits != 1:
        _write_partial(places, state, (buffers, buffers + 1, buffers + 2))
        buffers += 3
    else:
        for total, lanes in zip(totals, places.value_depth, strict=True):
            value = finish(writer, problem, f"{sums}[:, None]", total)
            axis = Axis(lanes.row, (3,), (problem.value_depth,), lanes.row_mask)
            epilogue.write(writer, value, [*places.row_axes(), axis])
    return writer.source(buffers, frame.dims)


@dataclass(frozen=True)
class _State:
    """Names of what is kept: runs of queries, none where they are loaded again, and what is known of the rows."""

    queries: list[str]
    peak: str
    sums: str
    totals: list[str]


def _query(places: Places, lanes: Lanes, place: str) -> str:
    """Loads a run of features of the queries; ``place`` is added to where they are."""
    query = places.problem.query
    axes = [*places.row_axes(), Axis(lanes.row, (3,), (places.problem.depth,), lanes.row_mask)]
    offset = offset_text(places.writer, query.strides, query.offset, axes)
    return _load(places.writer, f"p{query.pointer} + ({offset}){place}", [places.row_mask, lanes.row_mask])


def _mask_rows(places: Places) -> str | None:
    """Pointers to the first elements of the mask's rows, in their shape or one for all."""
    mask = places.problem.mask
    if mask is None:
        return None
    axes = [axis for axis in places.row_axes() if any(mask.strides[number] != 0 for number in axis.dims)]
    place = offset_text(places.writer, [*mask.strides[:3], 0], mask.offset, axes)
    return places.writer.let(f"p{mask.pointer} + ({place})", "masks")


def _step(places: Places, state: _State, keys: str, values: str, mask: str | None, end: str | None) -> None:
    """Writes what happens to a tile of keys; ``end``: keys from there on are not seen, and causality is looked at."""
    writer, problem = places.writer, places.problem
    at = writer.let(f"at{places.wide}")
    across, down = (writer.let(f"{places.key_number}{side}", "key") for side in ("[None, :]", "[:, None]"))
    number = writer.let(f"{at} + {across}", "key") if end is not None else ""
    inside = writer.let(f"{number} < {end}", "inside") if end is not None else None
    below = writer.let(f"{at} + {down} < {end}", "inside") if end is not None else None
    precision = ', input_precision="tf32x3"' if problem.query.element == "f32" else ""
    stride, step = (render(each) for each in problem.key.strides[2:])
    # What depends on the loop is not kept in registers: nothing is added, but Triton does not know that.
    again = f" + tl.minimum({at}, 0)"
    score = ""
    for number_of, lanes in enumerate(places.depth):
        query = state.queries[number_of] if state.queries else _query(places, lanes, again)
        place = f"{_advanced(writer, keys, at, problem.key)} + ({across} * {stride} + {lanes.column} * {step})"
        key = _load(writer, place, [inside, lanes.column_mask])
        score = writer.let(f"tl.dot({query}, {key}{f', {score}' if score else ''}{precision})", "score")
    score = _masked(places, score, at, across, mask, inside)
    if end is not None:
        seen = inside
        if problem.causal:
            seen = writer.let(f"{inside} & ({number} <= {places.query_number()})", "seen")
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
    for total, lanes in zip(state.totals, places.value_depth, strict=True):
        place = f"{_advanced(writer, values, at, problem.value)} + ({down} * {stride} + {lanes.row} * {step})"
        value = _load(writer, place, [below, lanes.row_mask])
        writer.line(f"{total} = tl.dot({narrow}, {value}, {total} * {change}[:, None]{precision})")
    writer.line(f"{state.peak} = {peak}")


def _masked(places: Places, score: str, at: str, across: str, rows: str | None, inside: str | None) -> str:
    writer, problem, mask = places.writer, places.problem, places.problem.mask
    if problem.natural:
        score = writer.let(f"{score} * {problem.scale!r}", "score")
    if mask is None:
        return score
    stride = mask.strides[3]
    along = "" if stride == 0 else f" + {at} * {render(stride)} + {across} * {render(stride)}"
    guards = [
        places.row_mask if any(each != 0 for each in mask.strides[:3]) and not _scalar_rows(places, mask) else None
    ]
    guards.append(inside if stride != 0 else None)
    found = _load(writer, f"{rows}{along}", guards, "0" if mask.element == "i1" else "0.0")
    if mask.element != "i1":
        return writer.let(f"{score} + {found}.to(tl.float32)", "score")
    shown = writer.let(f"{found} != 0", "shown")
    if problem.fill is None:
        return writer.let(f'{score} + tl.where({shown}, 0.0, float("-inf"))', "score")
    fill = f'float("{problem.fill}")' if math.isinf(problem.fill) or math.isnan(problem.fill) else repr(problem.fill)
    return writer.let(f"tl.where({shown}, {score}, {fill})", "score")


def _scalar_rows(places: Places, mask: Tensor) -> bool:
    """Whether all rows of a matrix see one row of the mask."""
    return not places.going.stacked and mask.strides[2] == 0


def _advanced(writer: KernelWriter, base: str, at: str, tensor: Tensor) -> str:
    return f"{base} + {at} * {render(tensor.strides[2])}"


def _load(writer: KernelWriter, place: str, masks: Sequence[str | None], other: str = "0.0") -> str:
    found = [each for each in masks if each is not None]
    guard = f", mask={' & '.join(found)}, other={other}" if found else ""
    return writer.let(f"tl.load({place}{guard})", "x")


def _write_partial(places: Places, state: _State, pointers: tuple[int, int, int]) -> None:
    writer = places.writer
    base = writer.let(f"({places.matrix} * {places.splits} + {places.split}) * {render(places.going.rows)}", "place")
    place = writer.let(f"{base} + {places.row}", "place")
    rows = f", mask={places.row_mask}" if places.row_mask else ""
    for pointer, value in zip(pointers[:2], (state.peak, state.sums), strict=True):
        writer.line(f"tl.store(p{pointer} + {place}, {value}[:, None]{rows})")
    for total, lanes in zip(state.totals, places.value_depth, strict=True):
        masks = [each for each in (places.row_mask, lanes.row_mask) if each is not None]
        guard = f", mask={' & '.join(masks)}" if masks else ""
        at = f"{place} * {places.problem.value_depth} + {lanes.row}"
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
