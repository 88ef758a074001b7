"""DFT and STFT as products with constant matrices of cosines and sines.

Quadratic in the length where an FFT is not, and right for every length. Sums are float64, as they cancel: the result is
that of the definition, rounded once.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import Array, NoRewriteError, Rewriter

MOST_ELEMENTS = 1 << 24
"""Elements of a matrix at most."""


def dft(b: Rewriter) -> None:
    """Writes a DFT, an inverse DFT, or one of a real signal, along one axis."""
    signal = b.input(0)
    shape = b.shape(signal)
    rank = len(shape)
    axis = b.attribute("axis", 1) if b.version < 20 else (b.integers(b.input(2))[0] if b.input(2) else -2)
    axis %= rank
    inverse, onesided = bool(b.attribute("inverse", 0)), bool(b.attribute("onesided", 0))
    half = inverse and onesided
    length = b.integers(b.input(1))[0] if b.input(1) else 2 * (shape[axis] - 1) if half else shape[axis]
    if axis == rank - 1:
        raise NoRewriteError("the axis of real and imaginary parts")
    order = [*[index for index in range(rank - 1) if index != axis], axis]
    wide = b.cast(signal, TensorProto.DOUBLE)
    parts = [b.transpose(b.gather(wide, index, rank - 1), order) for index in range(shape[-1])]
    back = [order.index(index) for index in range(rank - 1)]
    if half:
        results = [_inverse_of_half(b, parts, shape[axis], length)]
    else:
        results = transform(b, parts, shape[axis], length, length // 2 + 1 if onesided else length, inverse)
    joined = [b.unsqueeze(b.transpose(result, back), [rank - 1]) for result in results]
    b.give(b.cast(b.op("Concat", *joined, axis=rank - 1), b.dtype(signal)))


def stft(b: Rewriter) -> None:
    """Writes a short-time DFT: frames are gathered, weighted with the window and transformed."""
    signal = b.input(0)
    shape = b.shape(signal)
    step = b.integers(b.input(1))[0]
    length = b.integers(b.input(3))[0] if b.input(3) else b.shape(b.input(2))[0]
    frames = (shape[1] - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)[None, :]
    wide = b.cast(signal, TensorProto.DOUBLE)
    window = b.cast(b.input(2), TensorProto.DOUBLE) if b.input(2) else ""
    parts: list[str] = []
    for index in range(shape[2]):
        part = b.gather(b.gather(wide, index, 2), places, 1)
        parts.append(b.op("Mul", part, window) if window else part)
    bins = length // 2 + 1 if b.attribute("onesided", 1) else length
    results = transform(b, parts, length, length, bins, inverse=False)
    joined = b.op("Concat", *[b.unsqueeze(result, [3]) for result in results], axis=3)
    b.give(b.cast(joined, b.dtype(signal)))


def transform(b: Rewriter, parts: list[str], given: int, length: int, bins: int, inverse: bool) -> list[str]:
    """Transforms the last axis of the real part, or the real and the imaginary part; returns both parts.

    Args:
        b: writes.
        parts: each [..., given]; samples beyond ``length`` are cut, missing ones are zero.
        given: samples there are.
        length: of the transform.
        bins: of the result.
        inverse: with the other sign, and divided by the length.
    """
    angles = _angles(min(given, length), bins, length)
    scale = 1.0 / length if inverse else 1.0
    cosines, sines = np.cos(angles) * scale, np.sin(angles) * (-scale if inverse else scale)
    parts = [b.slice(part, -1, 0, length) if given > length else part for part in parts]
    real = _product(b, parts[0], cosines)
    imaginary = b.op("Neg", _product(b, parts[0], sines))
    if len(parts) > 1:
        real = b.op("Add", real, _product(b, parts[1], sines))
        imaginary = b.op("Add", imaginary, _product(b, parts[1], cosines))
    return [real, imaginary]


def _inverse_of_half(b: Rewriter, parts: list[str], given: int, length: int) -> str:
    """Returns the real signal whose one-sided spectrum ``parts`` is: each bin counts twice but the ends'."""
    bins = length // 2 + 1
    used = min(given, bins)
    angles = _angles(used, length, length)
    counts = np.full((used, 1), 2.0)
    counts[0] = 1.0
    if length % 2 == 0 and used == bins:
        counts[-1] = 1.0
    parts = [b.slice(part, -1, 0, used) if given > used else part for part in parts]
    signal = _product(b, parts[0], np.cos(angles) * counts / length)
    if len(parts) > 1:
        signal = b.op("Sub", signal, _product(b, parts[1], np.sin(angles) * counts / length))
    return signal


def _angles(rows: int, columns: int, length: int) -> Array:
    if rows * columns > MOST_ELEMENTS or length < 1:
        raise NoRewriteError(f"a matrix of {rows} x {columns}")
    # Reduced before the multiplication: 2 pi k n loses digits for large k n.
    return 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)


def _product(b: Rewriter, part: str, matrix: Array) -> str:
    return b.op("MatMul", part, b.constant(matrix, np.float64))
