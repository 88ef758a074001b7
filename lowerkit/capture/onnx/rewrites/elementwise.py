"""Ops that are a few elementwise ones, or few enough of them for small static extents."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter, is_float

LARGEST_DETERMINANT = 4


def cumulative_product(b: Rewriter) -> None:
    """Writes a CumProd by doubling: after step k each element holds the product of 2^k neighbours."""
    _cumulative(b, "Mul", 1)


def cumulative_sum(b: Rewriter) -> None:
    """Writes a CumSum of integers by doubling; floats have a kernel of their own, which adds in order.

    An exclusive sum of those is the inclusive one moved by a place: torch-mlir would subtract, and an infinity from
    itself.
    """
    if not is_float(b.dtype(b.input(0))):
        _cumulative(b, "Add", 0)
        return
    if not b.attribute("exclusive", 0):
        raise NoRewriteError("the conversion is right")
    included = b.op("CumSum", b.input(0), b.input(1), reverse=b.attribute("reverse", 0))
    b.give(_shifted(b, included, 1, 0))


def _cumulative(b: Rewriter, op_type: str, neutral: int) -> None:
    value = b.input(0)
    by, length = 1, b.shape(value)[_axis(b)]
    while by < length:
        value = b.op(op_type, value, _shifted(b, value, by, neutral))
        by *= 2
    if b.attribute("exclusive", 0):
        value = _shifted(b, value, 1, neutral)
    b.give(value)


def _axis(b: Rewriter) -> int:
    return b.integers(b.input(1))[0] % b.rank(b.input(0))


def _shifted(b: Rewriter, name: str, by: int, neutral: int) -> str:
    """Moves the elements of a value of the operand's shape by some places along the axis, onwards in its order."""
    shape, axis = b.shape(b.input(0)), _axis(b)
    fill = [by if index == axis else extent for index, extent in enumerate(shape)]
    neutrals = b.constant(np.full(fill, neutral), b.numpy_dtype(b.input(0)))
    backward = b.attribute("reverse", 0)
    kept = b.slice(name, axis, by, shape[axis]) if backward else b.slice(name, axis, 0, shape[axis] - by)
    return b.op("Concat", *((kept, neutrals) if backward else (neutrals, kept)), axis=axis)


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


def thresholded_relu(b: Rewriter) -> None:
    """Writes a ThresholdedRelu: a NaN is not above the threshold, so it gives 0."""
    x = b.input(0)
    above = b.op("Greater", x, b.scalar(b.attribute("alpha", 1.0), x))
    b.give(b.op("Where", above, x, b.scalar(0.0, x)))


def selu(b: Rewriter) -> None:
    """Gives a Selu the standard's defaults: torch-mlir's end after five digits."""
    if b.attribute("alpha", None) is not None and b.attribute("gamma", None) is not None:
        raise NoRewriteError("nothing is left to default")
    alpha, gamma = b.attribute("alpha", 1.67326319217681884765625), b.attribute("gamma", 1.05070102214813232421875)
    b.give(b.op("Selu", b.input(0), alpha=alpha, gamma=gamma))


def sign(b: Rewriter) -> None:
    """Writes the Sign of floats: that of NaN is NaN, for PyTorch 0."""
    x = b.input(0)
    dtype = b.dtype(x)
    if not is_float(dtype):
        raise NoRewriteError("no NaN")
    zero = b.scalar(0.0, x)
    above, below = (b.cast(b.op(name, x, zero), dtype) for name in ("Greater", "Less"))
    b.give(b.op("Where", b.op("IsNaN", x), x, b.op("Sub", above, below)))


def hard_swish(b: Rewriter) -> None:
    """Writes a HardSwish of f64 with the standard's factor, a sixth in float32; PyTorch divides by six in f64."""
    x = b.input(0)
    if b.dtype(x) != TensorProto.DOUBLE:
        raise NoRewriteError("the same number")
    b.give(b.op("Mul", x, b.op("HardSigmoid", x, alpha=float(np.float32(1 / 6)), beta=0.5)))


def gelu_by_tanh(b: Rewriter) -> None:
    """Writes a Gelu of f64 by tanh with the standard's constants, which it holds in float32; PyTorch's are of f64."""
    x = b.input(0)
    if b.attribute("approximate", "none") != "tanh" or b.dtype(x) != TensorProto.DOUBLE:
        raise NoRewriteError("the same number")
    factor, cubic = np.sqrt(np.float64(np.float32(2 / np.pi))), np.float64(np.float32(0.044715))
    cube = b.op("Mul", b.op("Mul", x, b.op("Mul", x, x)), b.scalar(cubic, x))
    inner = b.op("Tanh", b.op("Mul", b.scalar(factor, x), b.op("Add", x, cube)))
    b.give(b.op("Mul", b.op("Mul", b.scalar(0.5, x), x), b.op("Add", b.scalar(1.0, x), inner)))


def power_of_integers(b: Rewriter) -> None:
    """Writes a Pow of integers to a power that is a float in float64: the result is cut, not rounded."""
    base, exponent = b.input(0), b.input(1)
    if is_float(b.dtype(base)) or not is_float(b.dtype(exponent)):
        raise NoRewriteError("the conversion is right")
    power = b.op("Pow", b.cast(base, TensorProto.DOUBLE), b.cast(exponent, TensorProto.DOUBLE))
    b.give(b.cast(power, b.dtype(base)))


def shrink_of_integers(b: Rewriter) -> None:
    """Writes a Shrink of integers in float64: the bias and the limit may be fractions, the result is cut."""
    x = b.input(0)
    if is_float(b.dtype(x)):
        raise NoRewriteError("the conversion is right")
    wide = b.cast(x, TensorProto.DOUBLE)
    shrunk = b.op("Shrink", wide, lambd=b.attribute("lambd", 0.5), bias=b.attribute("bias", 0.0))
    b.give(b.cast(shrunk, b.dtype(x)))
