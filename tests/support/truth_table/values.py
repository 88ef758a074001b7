"""Special values of each element type, and the tensors that hold them.

Vocabulary
    form   how the operands of a cell are shaped: ``grid`` meets each value of one operand with each of the other,
           ``left0`` and ``right0`` have one operand of rank 0, ``strided`` reads transposed and stepped memory,
           ``same`` gives one tensor twice
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")


def special_values(name: str) -> Tensor:
    """Returns the special values of an element type, rank 1, in an order that puts unlike values side by side."""
    dtype = DTYPES[name]
    if dtype is torch.bool:
        return torch.tensor([True, False, False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        wanted = [2, -3, 0, 1, -1, 7, -2, 3, 10, 100, 127, -128, 255, 2**15 - 1, -(2**15), 2**24 + 1, -(2**24) - 1]
        wanted += [2**31 - 1, -(2**31), 2**53 + 1, limits.max, limits.max - 1, limits.min, limits.min + 1, 31, 64, 5]
        kept = dict.fromkeys(number for number in wanted if limits.min <= number <= limits.max)
        return torch.tensor(list(kept), dtype=dtype)
    info = torch.finfo(dtype)
    edge = math.log(info.max)
    numbers = [1.0, math.nan, 0.5, -0.0, 2.5, math.inf, -1.0, 0.0, 0.1, -math.inf, 1e6, -0.5, 3.0, 1.5, -2.5, -7.0]
    numbers += [info.max, -info.max, info.tiny, info.smallest_normal * info.eps, -info.smallest_normal * info.eps]
    numbers += [edge * 0.999, edge * 1.003, -edge * 1.003, -edge * 1.05, 2.0**24 + 1, 1e-4, -0.1, 20.5, math.pi, 1 / 3]
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def one_value(name: str, seed: int) -> Tensor:
    """Returns one of the special values, of rank 0."""
    values = special_values(name)
    return values[seed % len(values)].clone()


def operand(name: str, form: str, place: int, count: int, seed: int) -> Tensor:
    """Returns the operand at ``place`` of ``count`` for a form.

    Args:
        name: the element type.
        form: see the vocabulary.
        place: which tensor operand.
        count: how many there are.
        seed: chooses the value of an operand of rank 0.
    """
    values = special_values(name)
    if form == "empty":
        return torch.empty(0, 3, dtype=values.dtype)
    if form == "all0" or (form == "left0" and place == 0) or (form == "right0" and place == count - 1):
        return one_value(name, seed + place)
    if count == 1:
        return _stepped(values) if form == "strided" else values
    shuffled = values if place < 2 else values[torch.arange(len(values)) * 5 % len(values)]
    if form in ("left0", "right0"):
        return shuffled
    # Two axes: all operands of a cell have the same two extents, whatever number of values their types have.
    rows = 32
    repeated = shuffled[torch.arange(rows) % len(values)]
    if form == "strided":
        square = repeated.view(rows, 1).expand(rows, rows) if place == 0 else repeated.expand(rows, rows)
        return _stepped(square.t().contiguous()).t()
    return repeated.view(rows, 1) if place == 0 else repeated


def _stepped(values: Tensor) -> Tensor:
    """The same values, every other element of wider memory."""
    wide = torch.zeros(*values.shape[:-1], values.shape[-1] * 2, dtype=values.dtype)
    wide[..., ::2] = values
    return wide[..., ::2]
