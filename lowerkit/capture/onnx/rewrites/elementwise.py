"""Ops that are a few elementwise ones, or few enough of them for small static extents."""

from __future__ import annotations

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

LARGEST_DETERMINANT = 4


def determinant(b: Rewriter) -> None:
    """Writes the determinant of small matrices by expansion along rows."""
    shape = b.shape(b.input(0))
    size, rank = shape[-1], len(shape)
    if not 1 <= size <= LARGEST_DETERMINANT:
        raise NoRewriteError(f"matrices of {size} rows")
    rows = [b.gather(b.input(0), row, rank - 2) for row in range(size)]
    entries = [[b.gather(row, column, rank - 2) for column in range(size)] for row in rows]

    def minor(row: int, columns: tuple[int, ...]) -> str:
        if len(columns) == 1:
            return entries[row][columns[0]]
        total = ""
        for place, column in enumerate(columns):
            rest = minor(row + 1, columns[:place] + columns[place + 1 :])
            term = b.op("Mul", entries[row][column], rest)
            total = b.op("Sub" if place % 2 else "Add", total, term) if total else term
        return total

    b.give(minor(0, tuple(range(size))))


def dropout(b: Rewriter) -> None:
    """Writes a Dropout outside of training: its input, and a mask that keeps everything."""
    if b.input(2):
        training = b.value(b.input(2))
        ratio = b.value(b.input(1)) if b.input(1) else np.asarray(0.5)
        if training is None or (training.any() and (ratio is None or ratio.any())):
            raise NoRewriteError("training")
    b.give(b.op("Identity", b.input(0)))
    if b.output(1):
        b.give(b.constant(np.ones(b.shape(b.input(0))), np.bool_), 1)


def lp_normalization(b: Rewriter) -> None:
    """Writes an LpNormalization; where the norm is zero, so is the result."""
    axis, x = b.attribute("axis", -1), b.input(0)
    if b.attribute("p", 2) == 1:
        norm = b.op("ReduceSum", b.op("Abs", x), b.constant([axis]), keepdims=1)
    else:
        norm = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", x, x), b.constant([axis]), keepdims=1))
    zero = b.op("Equal", norm, b.scalar(0.0, x))
    b.give(b.op("Div", x, b.op("Where", zero, b.scalar(1.0, x), norm)))


def einsum_with_scalars(b: Rewriter) -> None:
    """Takes the operands of rank 0 out of an Einsum and multiplies with them."""
    terms, arrow, result = b.attribute("equation", "").replace(" ", "").partition("->")
    operands = list(zip(terms.split(","), b.node.input, strict=True))
    scalars = [name for term, name in operands if not term]
    tensors = [(term, name) for term, name in operands if term]
    if not scalars or not arrow:
        raise NoRewriteError("no operand of rank 0")
    if tensors:
        equation = ",".join(term for term, _ in tensors) + arrow + result
        value = b.op("Einsum", *[name for _, name in tensors], equation=equation)
    else:
        value = scalars.pop()
    for name in scalars:
        value = b.op("Mul", value, name)
    b.give(b.op("Identity", value))
