"""Writes the kernels of a product.

Vocabulary
    tile     ``m x n`` of the result, one block's work
    band, part   see :mod:`~lowerkit.targets.cuda.families.gemm_places`

Bytes: A and B once from device memory where a band fits into L2, each ``N / n`` and ``M / m`` times through L2; the
result once, operands of the epilogue once; with K split the parts are written and read once.

Bytes that are unsigned are brought to signed ones by their highest bit, since tensor cores multiply signs alike; what
that takes from each product, 128 times the column of B, is added again.
"""

from __future__ import annotations

from lowerkit.targets.cuda.families.gemm_places import Place, find_place
from lowerkit.targets.cuda.families.gemm_problem import Gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import POINTERS, TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, Tensor, offset_text, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product

SUM_BLOCK = 512


def write_gemm(
    family: str, frame: Frame, problem: Gemm, tile: GemmTile, epilogue: Epilogue, result: str
) -> TritonKernel:
    """Writes the kernel of a product whose K is not split."""
    writer = KernelWriter()
    place, row, column = _place(writer, frame, problem, tile)
    sums = _sums(writer, frame, problem, tile, place, row, column)
    axes = [*place.batch, row, column]
    epilogue.write(writer, writer.let(converted(sums, problem.accumulator, result), "value"), axes)
    source = writer.source(len(frame.buffers), frame.dims)
    return TritonKernel(family, source, pointer_types(frame), frame.dims, tile.warps, tile.stages)


def write_parts(family: str, frame: Frame, problem: Gemm, tile: GemmTile) -> TritonKernel:
    """Writes the kernel that sums each part of K into a temporary [part, batch, rows, columns] behind the buffers."""
    writer = KernelWriter()
    place, row, column = _place(writer, frame, problem, tile)
    sums = _sums(writer, frame, problem, tile, place, row, column)
    store_part(writer, frame, place, row, column, sums)
    return with_temporary(family, writer, frame, problem, tile.warps, tile.stages)


def store_part(writer: KernelWriter, frame: Frame, place: Place, row: Axis, column: Axis, sums: str) -> None:
    """Writes the store of sums of a part of K into the temporary behind the buffers."""
    problem = place.problem
    matrix = expression("mul", problem.rows, problem.columns)
    at = [f"{row.text} * {render(problem.columns)} + {column.text}"]
    if place.batch:
        at.append(f"{place.batch[0].text} * {render(matrix)}")
    at.append(f"{place.part} * {render(product([*problem.batch, matrix]))}")
    masks = " & ".join(axis.mask for axis in (row, column) if axis.mask is not None)
    guard = f", mask={masks}" if masks else ""
    writer.line(f"tl.store(p{len(frame.buffers)} + ({' + '.join(at)}), {sums}{guard})")


def write_sum_of_parts(
    family: str, frame: Frame, problem: Gemm, tile: GemmTile, epilogue: Epilogue, result: str
) -> tuple[TritonKernel, KernelExpr]:
    """Writes the kernel that adds the parts up and does the epilogue; returns it and its blocks."""
    writer = KernelWriter()
    wide = _wide(frame)
    sizes = (*problem.batch, *problem.row_sizes, problem.columns)
    count = product(sizes)
    flat = writer.let(f"tl.program_id(0){wide} * {SUM_BLOCK} + tl.arange(0, {SUM_BLOCK}){wide}", "flat")
    whole = isinstance(count, int) and count % SUM_BLOCK == 0
    mask = None if whole else writer.let(f"{flat} < {render(count)}", "mask")
    guard = "" if mask is None else f", mask={mask}"
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.load(p{len(frame.buffers)} + {flat}{guard})")
    with writer.block(f"for part in range(1, {tile.split}):"):
        step = "part" if not wide else "tl.cast(part, tl.int64)"
        writer.line(f"{sums} += tl.load(p{len(frame.buffers)} + {flat} + {step} * {render(count)}{guard})")
    value = writer.let(converted(sums, problem.accumulator, result), "value")
    epilogue.write(writer, value, [Axis(flat, tuple(range(len(sizes))), sizes, mask)])
    kernel = with_temporary(f"{family}_sum", writer, frame, problem, 4, 2)
    return kernel, expression("ceildiv", count, SUM_BLOCK)


def with_temporary(
    family: str, writer: KernelWriter, frame: Frame, problem: Gemm, warps: int, stages: int
) -> TritonKernel:
    """Returns a kernel that takes the temporary of the parts behind the buffers."""
    pointers = (*pointer_types(frame), POINTERS[problem.accumulator])
    return TritonKernel(family, writer.source(len(pointers), frame.dims), pointers, frame.dims, warps, stages)


def _wide(frame: Frame) -> str:
    return ".to(tl.int64)" if frame.wide else ""


def _place(writer: KernelWriter, frame: Frame, problem: Gemm, tile: GemmTile) -> tuple[Place, Axis, Axis]:
    """Writes where a block is; returns that, and the axes of its rows and columns."""
    place = find_place(writer, frame, problem, tile, writer.let(f"tl.program_id(0){_wide(frame)}", "pid"))
    return place, place.rows(writer, tile.m), place.columns(writer, tile.n)


def _sums(
    writer: KernelWriter, frame: Frame, problem: Gemm, tile: GemmTile, place: Place, row: Axis, column: Axis
) -> str:
    """Writes the loop over K; returns the name of the sums."""
    wide, depth = _wide(frame), problem.depth
    a = _operand(writer, problem.a, problem.a_batch, place.batch)
    b = _operand(writer, problem.b, problem.b_batch, place.batch)
    a_at = writer.let(f"{a} + {row.text} * {render(problem.a_strides[0])}", "a")
    b_at = writer.let(f"{b} + {column.text} * {render(problem.b_strides[1])}", "b")
    step = writer.let(f"tl.arange(0, {tile.k}){wide}", "step")
    sums, columns = writer.fresh("sums"), writer.fresh("columns")
    writer.line(f"{sums} = tl.zeros(({tile.m}, {tile.n}), {TYPES[problem.accumulator]})")
    if problem.unsigned:
        writer.line(f"{columns} = tl.zeros(({tile.n},), tl.int32)")
    first, last, whole = "0", render(depth), _divides(depth, tile.k)
    if tile.split > 1:
        assert isinstance(depth, int), "an open K is not split"
        part = -(-depth // (tile.split * tile.k)) * tile.k
        first = writer.let(f"{place.part} * {part}", "first")
        last = f"{first} + {part}"
        whole = depth == part * tile.split
        if wide:  # the counter of a loop over the widest of its bounds
            first, last = f"{first}.to(tl.int32)", f"({last}).to(tl.int32)"
    with writer.block(f"for start in range({first}, {last}, {tile.k}):"):
        inner = writer.let(f"start + {step}", "inner")
        inside = None if whole else writer.let(f"{inner} < {render(depth)}", "inside")
        stride_a, stride_b = render(problem.a_strides[1]), render(problem.b_strides[0])
        other = "0" if problem.accumulator == "i32" else "0.0"
        left = _load(writer, f"{a_at} + {inner}[None, :] * {stride_a}", row.mask, inside, "[None, :]", other)
        right = _load(writer, f"{b_at} + {inner}[:, None] * {stride_b}", column.mask, inside, "[:, None]", other)
        if problem.unsigned:
            left = writer.let(f"({left} ^ -128).to(tl.int8)", "signed")
            writer.line(f"{columns} += tl.sum({right}.to(tl.int32), 0)")
        kind = frame.precision(problem.a.element)
        kind += ", out_dtype=tl.int32" if problem.accumulator == "i32" else ""
        writer.line(f"{sums} = tl.dot({left}, {right}, {sums}{kind})")
    if problem.unsigned:
        return writer.let(f"{sums} + ({columns} * 128)[None, :]", "sums")
    return sums


def _operand(writer: KernelWriter, tensor: Tensor, strides: tuple[KernelExpr, ...], axes: list[Axis]) -> str:
    if not axes:
        return f"p{tensor.pointer}" if tensor.offset == 0 else f"(p{tensor.pointer} + {render(tensor.offset)})"
    return writer.let(f"p{tensor.pointer} + ({offset_text(writer, strides, tensor.offset, axes)})", "base")


def _load(writer: KernelWriter, place: str, mask: str | None, inside: str | None, along: str, other: str) -> str:
    masks = [each for each in (mask, None if inside is None else f"{inside}{along}") if each is not None]
    guard = f", mask={' & '.join(masks)}, other={other}" if masks else ""
    return writer.let(f"tl.load({place}{guard})", "x")


def _divides(size: KernelExpr, by: int) -> bool:
    return isinstance(size, int) and size % by == 0
