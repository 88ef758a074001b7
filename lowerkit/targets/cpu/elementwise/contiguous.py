"""Elementwise kernels whose operands are contiguous, broadcast or (rarely) strided along the innermost loop.

Steps: a task is a range of rows, or a piece of a long row; each row is walked in vectors, four at a time where the
body is small, with one masked vector at the end. Bytes: every operand once; broadcast rows stay in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.targets.cpu.elementwise.loop_nest import ElementwiseNest
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.linear_access import Access
from lowerkit.targets.cpu.text.region_values import Constant
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.plan import KernelExpr, expression, product

__all__ = ["apply_body", "choose_lanes", "emit_rows"]


def choose_lanes(nest: ElementwiseNest, vector_bits: int) -> int:
    """Lanes of a vector: a full register of what is computed on (f32 for the narrow floats)."""
    elements = [access.buffer.element for access in nest.outputs]
    elements += [source.buffer.element for source in nest.inputs if isinstance(source, Access)]
    widths = [element_bytes(element) for element in elements]
    if nest.body is not None and any(element in ("f16", "bf16") for element in elements):
        widths.append(4)
    narrowest_useful = max(widths) if max(widths) <= 4 else (8 if min(widths) == 8 else 4)
    return vector_bits // (8 * narrowest_useful)


def apply_body(
    frame: KernelFrame,
    nest: ElementwiseNest,
    point: Sequence[Index],
    group: int | None,
    lanes: int,
    mask: Value | None,
    given: dict[int, Value] | None = None,
) -> list[Value]:
    """Emits the body for the lanes at ``point`` along ``group`` and returns the outputs.

    Args:
        given: arguments that are in registers already, by number.
    """
    text = frame.text
    arguments: list[Value | None] = []
    for number, source in enumerate(nest.inputs):
        if given is not None and number in given:
            arguments.append(given[number])
        elif isinstance(source, Access):
            stride = 0 if group is None else source.strides[group]
            arguments.append(text.strided_read(source.buffer, source.at(text, point), stride, lanes, mask))
        elif isinstance(source, Constant):
            assert nest.body is not None
            arguments.append(text.constant(source.number, nest.body.inputs[number], lanes))
        else:
            arguments.append(None)
    if nest.body is None:
        assert arguments[0] is not None
        return [arguments[0]]

    def coordinates(dim: int) -> Value:
        for number, loop in enumerate(nest.groups):
            if dim in loop.dims:
                base = text.broadcast(text.as_value(point[number]), lanes)
                return text.add(base, text.lane_numbers(lanes)) if number == group else base
        return text.constant(0, "i64", lanes)

    return nest.body.emit(text, arguments, coordinates, lanes=lanes)


def emit_rows(frame: KernelFrame, nest: ElementwiseNest, lanes: int) -> KernelExpr:
    """Writes the kernel and returns its task count."""
    text = frame.text
    if not nest.groups:
        with frame.tasks():
            _store(frame, nest, apply_body(frame, nest, [], None, 1, None), [], None, None)
        return 1
    inner = len(nest.groups) - 1
    outer_sizes = [group.size for group in nest.groups[:-1]]
    outer_count, outer_extent = text.iproduct(outer_sizes), product([g.extent for g in nest.groups[:-1]])
    row, row_extent = nest.groups[-1].size, nest.groups[-1].extent
    grain = nest.grain()
    unroll = 4 if nest.body is None or nest.body.op_count <= 6 else 2 if nest.body.op_count <= 24 else 1

    def walk(outer: Sequence[Index], begin: Index, count: Index) -> None:
        def step(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            point = [*outer, text.iadd(begin, index)]
            _store(frame, nest, apply_body(frame, nest, point, inner, lanes, mask), point, inner, mask)
            return carried

        text.strip(count, lanes, step, unroll=unroll)

    long_row = not isinstance(row, int) or row >= 2 * grain
    with frame.tasks() as task:
        if long_row:
            pieces = text.iceildiv(row, grain)
            begin = text.imul(text.irem(task, pieces), grain)
            walk(text.unravel(text.idiv(task, pieces), outer_sizes), begin, text.imin(grain, text.isub(row, begin)))
            return expression("mul", outer_extent, expression("ceildiv", row_extent, grain))
        assert isinstance(row, int)
        rows = max(1, grain // max(row, 1))
        first = text.imul(task, rows)
        with text.span(first, text.imin(outer_count, text.iadd(first, rows))) as loop:
            walk(text.unravel(loop.index, outer_sizes), 0, row)
        return expression("ceildiv", outer_extent, rows)


def _store(
    frame: KernelFrame,
    nest: ElementwiseNest,
    outputs: Sequence[Value],
    point: Sequence[Index],
    group: int | None,
    mask: Value | None,
) -> None:
    for value, access in zip(outputs, nest.outputs, strict=True):
        stride = 1 if group is None else access.strides[group]
        frame.text.strided_write(value, access.buffer, access.at(frame.text, point), stride, mask)
