"""Places that depend on data: integers that are computed of elements of operands, once for a kernel."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.scalars import NoCode, op_text
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor, load
from lowerkit.targets.cuda.triton.writer import KernelWriter, as_i64, render


def place_text(writer: KernelWriter, frame: Frame, value: ir.Value) -> str:
    """Returns the name of an integer: of the open extents, an element of an operand, or computed of both.

    Raises:
        NoCode: it is something else; the text says what.
    """
    size = frame.index(value)
    if size is not None:
        return writer.let(f"tl.full([], {size}, tl.int64)" if isinstance(size, int) else as_i64(render(size)))
    if isinstance(value.owner, ir.Block):
        raise NoCode("a place that is an argument")
    op = value.owner.operation
    if op.name == "tensor.extract":
        source = frame.source(op.operands[0])
        if not isinstance(source, Tensor):
            raise NoCode("an element of a computed tensor")
        terms = [render(source.offset)]
        for index, stride in zip(list(op.operands)[1:], source.strides, strict=True):
            terms.append(f"{place_text(writer, frame, index)} * {render(stride)}")
        return load(writer, source, writer.let(" + ".join(terms)), None)
    if not op.name.startswith("arith.") or op.name == "arith.constant":
        raise NoCode(f"a place by {op.name}")
    return writer.let(op_text(op, [place_text(writer, frame, operand) for operand in op.operands]))
