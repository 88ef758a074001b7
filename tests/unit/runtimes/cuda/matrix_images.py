"""Matrices as tensor cores find them in shared memory, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

Array = np.ndarray[Any, Any]
DTYPES: Mapping[str, Any] = {
    "bf16": bfloat16, "f16": np.float16, "tf32": np.float32, "e4m3": float8_e4m3fn, "e5m2": float8_e5m2,
    "s8": np.int8, "u8": np.uint8,
}  # fmt: skip


def image(matrix: Array, span: int, transposed: bool) -> tuple[Array, int, int]:
    """Returns a matrix, [rows, k], as it lies in shared memory, with its leading and stride offset in bytes.

    Element by element, from the canonical layouts: atoms of 8 lines of ``span`` bytes with swizzled 16-byte pieces.
    """
    rows, depth = matrix.shape
    size = matrix.itemsize
    lines, line_bytes = (depth, rows * size) if transposed else (rows, depth * size)
    atom = 8 * span
    atoms_along, atoms_down = -(-line_bytes // span), -(-lines // 8)
    # Atoms along a line follow each other, then the next eight lines.
    along, down = atom, atom * atoms_along
    found = np.zeros(atoms_down * down, np.uint8)
    data = np.ascontiguousarray(matrix.T if transposed else matrix).view(np.uint8)
    for line in range(lines):
        for byte in range(line_bytes):
            place = line // 8 * down + byte // span * along + line % 8 * span + byte % span
            piece, row = place // 16, place // 128
            found[(piece ^ (row % 8 % (span // 16))) * 16 + place % 16] = data[line, byte]
    swapped = transposed and span == 16
    return (found, down, along) if swapped else (found, along, down)


def small_integers(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    """Returns values whose sums of products are exact in every type."""
    return np.random.default_rng(seed).integers(0 if kind == "u8" else -3, 4, shape).astype(DTYPES[kind])
