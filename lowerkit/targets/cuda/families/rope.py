"""``lk.rope``: rotary position embedding, some rows at a time, both features of a pair in one thread.

For each pair (a, b): ``a cos - b sin`` and ``b cos + a sin``. Pairs are (i, i + D/2), two loads half a row apart, or
(2i, 2i + 1), one load that is taken apart in registers. Bytes: input and result once, the tables once from device
memory and for each head again from the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, Tensor, load, offset_text, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView

PAIRS = 1024
"""Pairs of a block: 8 for each thread."""
_FLOATS = ("f32", "f16", "bf16", "f64")
_FEATURES = 3  # the dim of features


@dataclass(frozen=True)
class Rope:
    """A rotation: the data, and tables with strides over its dims, 0 where they are broadcast.

    Attributes:
        per_feature: whether tables have a value for each feature, not one for each pair.
    """

    data: Tensor
    cosine: Tensor
    sine: Tensor
    features: int
    interleaved: bool
    per_feature: bool
    compute: str


class RopeFamily(KernelFamily):
    """``lk.rope`` of floats, halves or interleaved, with an epilogue."""

    name: ClassVar[str] = "rope"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name != "lk.rope":
            return Refusal("the anchor is not lk.rope")
        frame = Frame(region)
        problem = _read(frame, anchor.operation)
        if isinstance(problem, Refusal):
            return problem
        epilogue = read_epilogue(region, frame, anchor.operation)
        if isinstance(epilogue, Refusal):
            return epilogue
        rows = product(problem.data.sizes[:3])
        block = max(1, PAIRS // _power(problem.features // 2))
        if isinstance(rows, int):
            block = min(block, _power(rows))
        source = _write(frame, problem, block, epilogue)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims)
        sizes = [buffer.bytes for buffer in frame.buffers]
        count = len(region.operands)
        way = "neighbours" if problem.interleaved else "halves"
        return one_kernel(
            kernel,
            sizes,
            count,
            expression("ceildiv", rows, block),
            note=f"{block} rows of {problem.features // 2} pairs, {way}",
            flops=product([rows, 3 * problem.features]),
            read=total(sizes[:count]),
            written=total(sizes[count:]),
        )


def _read(frame: Frame, anchor: ir.Operation) -> Rope | Refusal:
    sources: list[Tensor] = []
    for value in anchor.operands:
        source = frame.source(value)
        if not isinstance(source, Tensor):
            return Refusal("an operand is computed inside the region")
        sources.append(source)
    data, cosine, sine = sources
    if any(each.element not in _FLOATS for each in sources):
        return Refusal("an operand is not of floats")
    if data.element != "f64" and "f64" in (cosine.element, sine.element):
        return Refusal("tables of f64 for narrower data")
    features, entries = data.sizes[_FEATURES], cosine.sizes[-1]
    if not isinstance(features, int) or not isinstance(entries, int):
        return Refusal("the number of features is open")
    if 0 in data.sizes:
        return Refusal("nothing to compute")
    interleaved = ir.BoolAttr(anchor.attributes["interleaved"]).value
    compute = "f64" if data.element == "f64" else "f32"
    tables = [_table(each) for each in (cosine, sine)]
    return Rope(data, tables[0], tables[1], features, interleaved, entries == features, compute)


def _table(table: Tensor) -> Tensor:
    """Returns a table with four dims; an open extent may turn out to be 1, then its stride is 0."""
    lacking = 4 - len(table.sizes)
    strides: list[KernelExpr] = [0] * lacking
    for number, (size, stride) in enumerate(zip(table.sizes, table.strides, strict=True)):
        # A table of one pair has one entry for it: the last dim is never broadcast.
        many = 1 if lacking + number == _FEATURES else expression("min", expression("sub", size, 1), 1)
        strides.append(expression("mul", stride, many))
    return Tensor(table.pointer, table.element, (1,) * lacking + table.sizes, tuple(strides), table.offset)


def _write(frame: Frame, problem: Rope, block: int, epilogue: Epilogue) -> str:
    writer = KernelWriter()
    wide = ".to(tl.int64)" if frame.wide else ""
    rows = product(problem.data.sizes[:3])
    row = writer.let(f"(tl.program_id(0){wide} * {block} + tl.arange(0, {block}))[:, None]", "row")
    whole = isinstance(rows, int) and rows % block == 0
    row_mask = None if whole else writer.let(f"{row} < {render(rows)}", "rows")
    row_axis = Axis(row, (0, 1, 2), problem.data.sizes[:3], row_mask)
    half = problem.features // 2
    padded = _power(half)
    if problem.interleaved:
        _write_neighbours(writer, problem, row_axis, block, padded, epilogue)
        return writer.source(len(frame.buffers), frame.dims)
    lane = writer.let(f"tl.arange(0, {padded})[None, :]", "lane")
    mask = None if padded == half else writer.let(f"{lane} < {half}", "lanes")
    first = Axis(lane, (_FEATURES,), (problem.features,), mask)
    second = Axis(writer.let(f"{lane} + {half}", "lane"), (_FEATURES,), (problem.features,), mask)
    a, b = (_values(writer, problem, problem.data, [row_axis, axis]) for axis in (first, second))
    tables = [(problem.cosine, axis) for axis in (first, second)] + [(problem.sine, axis) for axis in (first, second)]
    cos_a, cos_b, sin_a, sin_b = (
        _values(writer, problem, table, [row_axis, axis if problem.per_feature else first]) for table, axis in tables
    )
    for text, axis in ((f"{a} * {cos_a} - {b} * {sin_a}", first), (f"{b} * {cos_b} + {a} * {sin_b}", second)):
        value = writer.let(converted(writer.let(text, "turned"), problem.compute, problem.data.element), "value")
        epilogue.write(writer, value, [row_axis, axis])
    return writer.source(len(frame.buffers), frame.dims)


def _write_neighbours(
    writer: KernelWriter, problem: Rope, row_axis: Axis, block: int, padded: int, epilogue: Epilogue
) -> None:
    lane = writer.let(f"tl.arange(0, {2 * padded})[None, :]", "lane")
    cut = 2 * padded != problem.features
    axis = Axis(
        lane, (_FEATURES,), (problem.features,), writer.let(f"{lane} < {problem.features}", "lanes") if cut else None
    )

    def pair(tensor: Tensor) -> tuple[str, str]:
        """The first and the second feature of each pair."""
        wide = _values(writer, problem, tensor, [row_axis, axis])
        names = writer.fresh("a"), writer.fresh("b")
        full = f"tl.broadcast_to({wide}, ({block}, {2 * padded}))"
        writer.line(f"{', '.join(names)} = tl.split(tl.reshape({full}, ({block}, {padded}, 2)))")
        return names

    def of_pairs(tensor: Tensor) -> tuple[str, str]:
        """The value for each pair, twice."""
        number = writer.let(f"tl.arange(0, {padded})[None, :]", "pair")
        half = problem.features // 2
        mask = writer.let(f"{number} < {half}", "pairs") if cut else None
        value = _values(writer, problem, tensor, [row_axis, Axis(number, (_FEATURES,), (half,), mask)])
        return value, value

    a, b = pair(problem.data)
    (cos_a, cos_b), (sin_a, sin_b) = (
        pair(table) if problem.per_feature else of_pairs(table) for table in (problem.cosine, problem.sine)
    )
    first = writer.let(f"{a} * {cos_a} - {b} * {sin_a}", "turned")
    second = writer.let(f"{b} * {cos_b} + {a} * {sin_b}", "turned")
    both = writer.let(f"tl.reshape(tl.join({first}, {second}), ({block}, {2 * padded}))", "both")
    value = writer.let(converted(both, problem.compute, problem.data.element), "value")
    epilogue.write(writer, value, [row_axis, axis])


def _values(writer: KernelWriter, problem: Rope, tensor: Tensor, axes: list[Axis]) -> str:
    """Elements of the data or a table in the type of the arithmetic; a table is read once where rows share it."""
    used = [axis for axis in axes if any(tensor.strides[number] != 0 for number in axis.dims)]
    place = offset_text(writer, tensor.strides, tensor.offset, used)
    masks = [axis.mask for axis in used if axis.mask is not None]
    mask = writer.let(" & ".join(masks), "mask") if masks else None
    loaded = load(writer, tensor, place, mask, "0.0")
    return loaded if tensor.element == problem.compute else writer.let(f"{loaded}.to({TYPES[problem.compute]})", "wide")


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
