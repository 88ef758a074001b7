"""Reductions whose conversion overflows where the result does not, or computes in another precision or shape."""

from __future__ import annotations

from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter, is_float, require_static

_AXES_ARE_AN_OPERAND = 18


def log_of_summed_exponentials(b: Rewriter) -> None:
    """Takes the maximum out of ReduceLogSumExp before exponentials are computed, unless it is infinite."""
    value, dtype = b.input(0), b.dtype(b.input(0))
    if not is_float(dtype) or not b.rank(value):
        raise NoRewriteError("integers, or nothing to sum along")
    axes = b.integers(b.input(1)) if b.input(1) else list(b.attribute("axes", []))
    if not axes and b.attribute("noop_with_empty_axes", 0):
        raise NoRewriteError("nothing is summed")
    axes = axes or list(range(b.rank(value)))
    narrow = dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    wide = b.cast(value, TensorProto.FLOAT) if narrow else value
    if b.version < _AXES_ARE_AN_OPERAND:
        largest = b.op("ReduceMax", wide, axes=axes)
    else:
        largest = b.op("ReduceMax", wide, b.constant(axes))
    # An infinite maximum must not be subtracted: inf - inf is NaN.
    zero = b.constant(0, "float64" if dtype == TensorProto.DOUBLE else "float32")
    shift = b.op("Where", b.op("IsInf", largest), zero, largest)
    total = b.op("ReduceSum", b.op("Exp", b.op("Sub", wide, shift)), b.constant(axes))
    result = b.op("Add", b.op("Log", total), shift)
    if not b.attribute("keepdims", 1):
        result = b.op("Squeeze", result, b.constant(axes))
    b.give(b.cast(result, dtype) if narrow else result)


def double_norm(b: Rewriter) -> None:
    """Writes a ReduceL2 of float64 as the root of a sum of squares: the conversion computes it in float32."""
    if b.dtype(b.input(0)) != TensorProto.DOUBLE:
        raise NoRewriteError("the precision is that of the operand or more")
    operands = [b.input(place) for place in range(len(b.node.input))]
    kept = {attribute.name: b.attribute(attribute.name, None) for attribute in b.node.attribute}
    b.give(b.op("Sqrt", b.op("ReduceSumSquare", *operands, **kept)))


def one_after_the_other(b: Rewriter) -> None:
    """Writes a Max, Min, Sum or Mean of several as nodes of two: the conversion gives each step the last shape."""
    operands = [b.input(place) for place in range(len(b.node.input))]
    if len(operands) < 3 and (b.node.op_type != "Mean" or len(operands) < 2):
        raise NoRewriteError("one step")
    total = operands[0]
    for operand in operands[1:]:
        total = b.op("Add" if b.node.op_type in ("Sum", "Mean") else b.node.op_type, total, operand)
    b.give(b.op("Div", total, b.scalar(float(len(operands)), operands[0])) if b.node.op_type == "Mean" else total)


def last_of_equals(b: Rewriter) -> None:
    """Lets an ArgMax or ArgMin that counts from the end through where the extent is known.

    Raises:
        UnsupportedError: LK4001, the extent is open: the conversion takes it for -1.
    """
    if b.attribute("select_last_index", 0):
        require_static(b, "the last of equal elements", [b.attribute("axis", 0)])
    raise NoRewriteError("the conversion is right")
