"""Equality and choices between values that may be one value: torch-mlir folds both too far."""

from __future__ import annotations

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter, is_float


def equal(b: Rewriter) -> None:
    """Writes an Equal of floats as two comparisons: torch-mlir takes a value for equal to itself, which NaN is not."""
    left, right = b.input(0), b.input(1)
    if not is_float(b.dtype(left)) or any(b.value(name) is not None for name in (left, right)):
        raise NoRewriteError("an integer equals itself, and no computed value is a constant")
    b.give(b.op("And", b.op("GreaterOrEqual", left, right), b.op("LessOrEqual", left, right)))


def where(b: Rewriter) -> None:
    """Broadcasts both sides of a Where that have one shape to that of the result.

    Of one value on both sides torch-mlir gives that value, in its own shape.
    """
    condition, left, right = (b.input(index) for index in range(3))
    try:
        sides, result = (b.shape(left), b.shape(right)), b.shape(b.output(0))
    except NoRewriteError:
        if left != right:
            raise
        b.give(b.op("Expand", left, b.op("Shape", condition)))
        return
    if left != right and (sides[0] != sides[1] or sides[0] == result):
        raise NoRewriteError("no value of another shape than the result can be on both sides")
    shape = b.constant(list(result))
    if left == right:
        b.give(b.op("Expand", left, shape))
    else:
        b.give(b.op("Where", condition, b.op("Expand", left, shape), b.op("Expand", right, shape)))
