"""Normalizations: in the precision that their operands have, over the windows that ONNX says."""

from __future__ import annotations

from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter


def layer_normalization(b: Rewriter) -> None:
    """Lets a LayerNormalization of float64 compute in float64, as ONNX Runtime and PyTorch do.

    Its attribute ``stash_type``, float32 where it is not given, says otherwise.
    """
    if b.dtype(b.input(0)) != TensorProto.DOUBLE or b.attribute("stash_type", 1) == TensorProto.DOUBLE:
        raise NoRewriteError("the precision is that of the operands or more")
    kept = {name: b.attribute(name, None) for name in ("axis", "epsilon") if b.attribute(name, None) is not None}
    operands = [b.input(place) for place in range(len(b.node.input))]
    b.give(b.op("LayerNormalization", *operands, stash_type=TensorProto.DOUBLE, **kept))
    if len(b.node.output) > 1:  # which ONNX knows in float32 alone
        single = [b.cast(operand, TensorProto.FLOAT) for operand in operands]
        for place, output in enumerate(b.ops("LayerNormalization", single, len(b.node.output), **kept)):
            if place:
                b.give(output, place)


def local_response_normalization(b: Rewriter) -> None:
    """Writes an LRN over an even number of channels: the one more is behind, PyTorch's before."""
    size, x = b.attribute("size", 1), b.input(0)
    if size % 2:
        raise NoRewriteError("the conversion is right")
    channels, rank = b.extent(x, 1), b.rank(x)
    pads = [0] * (2 * rank)
    pads[1], pads[rank + 1] = (size - 1) // 2, size // 2
    squares = b.op("Pad", b.op("Mul", x, x), b.constant(pads))
    total = b.op("Sum", *(b.slice(squares, 1, first, first + channels) for first in range(size)))
    scaled = b.op("Mul", total, b.scalar(b.attribute("alpha", 1e-4) / size, x))
    base = b.op("Add", scaled, b.scalar(b.attribute("bias", 1.0), x))
    b.give(b.op("Div", x, b.op("Pow", base, b.scalar(b.attribute("beta", 0.75), x))))
