"""The element type that PyTorch brings operands to: its ``elementwise_dtypes``, as a table of our own."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from lowerkit.passes.raising.torch_dialect.torch_ir import FLOATS

WIDTHS = {
    "i1": 1, "ui8": 8, "si8": 8, "ui16": 16, "si16": 16, "ui32": 32, "si32": 32, "ui64": 64, "si64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
}  # fmt: skip
"""Bits of an element, by its type."""

NUMBER_DTYPES = {"!torch.bool": "i1", "!torch.int": "si64", "!torch.float": "f32"}
"""The element type of a Python number in PyTorch's defaults."""


class Standing(IntEnum):
    """How much an operand has to say: one that comes later counts only if it is of a higher kind."""

    TENSOR = 0
    RANK_0 = 1
    NUMBER = 2


def kind(dtype: str) -> int:
    """Returns 0 for bools, 1 for integers, 2 for floats."""
    return 2 if dtype in FLOATS else 1 if dtype != "i1" else 0


def joined(left: str, right: str) -> str:
    """Returns the type that holds two types of operands of one standing."""
    if left == right:
        return left
    if kind(left) != kind(right):
        return left if kind(left) > kind(right) else right
    if WIDTHS[left] == WIDTHS[right]:
        return "f32" if kind(left) == 2 else "si16"  # f16 and bf16; bytes with a sign and without
    return left if WIDTHS[left] > WIDTHS[right] else right


def promoted(operands: Iterable[tuple[str, Standing]]) -> str:
    """Returns the common type of operands, each an element type and its standing.

    Tensors with dims decide; a tensor of rank 0 counts where it is of a higher kind (bool, integer, float) than all of
    them, and a Python number where it is of a higher kind than all tensors.
    """
    by_standing: dict[Standing, str] = {}
    for dtype, standing in operands:
        known = by_standing.get(standing)
        by_standing[standing] = dtype if known is None else joined(known, dtype)
    found = ""
    for standing in Standing:
        dtype = by_standing.get(standing, "")
        if dtype and (not found or kind(dtype) > kind(found)):
            found = dtype
    assert found, "an op has operands"
    return found


def wrapped(number: float, dtype: str) -> int:
    """Returns a number as an integer of ``dtype``, cut off as a conversion in C does; a bool says whether it is 0."""
    if dtype == "i1":
        return int(number != 0)
    low = 0 if dtype.startswith("u") else -(1 << (WIDTHS[dtype] - 1))
    return (int(number) - low) % (1 << WIDTHS[dtype]) + low
