"""Forms of a sample's tensors: special values put into them, other extents, other memory.

Vocabulary
    drawn             as PyTorch's operator tests draw them
    strided           transposed or stepped memory
    nan, inf, -inf    one such value in each float tensor
    zeros             zeros of both signs, denormals and many equal values
    large             magnitudes whose squares overflow, and whose sums do not
    limits            the extremes of an integer type and what lies around them
    empty:N, one:N    every extent of N made 0, or 1
    rank0             each tensor reduced to its first element
    symbolic:FORM     as FORM, with every extent left open
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.support.truth_table.values import DTYPES, FLOATS, special_values

SYMBOLIC = "symbolic:"
_ALL = ("drawn", "strided", "nan", "inf", "-inf", "zeros", "large", "rank0")


def forms_of(dtype: str, tensors: list[Tensor], *, first: bool) -> list[str]:
    """Returns the forms in which a sample is a cell; further samples of an operator are taken as they are drawn."""
    if not first:
        return ["drawn"]
    extents = sorted({size for tensor in tensors for size in tensor.shape if size > 1})[:3]
    empty = [f"empty:{size}" for size in extents]
    if dtype == "f32":
        symbolic = [f"{SYMBOLIC}{form}" for form in ("drawn", "nan", "inf", "-inf", "zeros")]
        return [*_ALL, *empty, *(f"one:{size}" for size in extents[:2]), *symbolic]
    if dtype in FLOATS:
        return ["drawn", "nan", "inf", "large", *([f"{SYMBOLIC}nan"] if dtype == "bf16" else [])]
    if dtype == "bool":
        return ["drawn", f"{SYMBOLIC}drawn"]
    return ["drawn", "limits", *([*empty[:1], f"{SYMBOLIC}limits"] if dtype == "i64" else [])]


def in_form(tensor: Tensor, form: str, dtype: str, place: int) -> Tensor:
    """Returns ``tensor`` in a form; tensors of another type than the sample's keep their values."""
    form = form.removeprefix(SYMBOLIC)
    value = tensor.detach().clone(memory_format=torch.contiguous_format)
    name, _, number = form.partition(":")
    if name in ("empty", "one"):
        shape = [(0 if name == "empty" else 1) if size == int(number) else size for size in value.shape]
        return value[tuple(slice(0, size) for size in shape)].clone(memory_format=torch.contiguous_format)
    if name == "rank0":
        return value.reshape(-1)[:1].reshape(()).clone() if value.numel() else value
    if name == "strided":
        return _strided(value, place)
    if value.dtype is not DTYPES[dtype] or not value.numel():
        return value
    flat = value.reshape(-1)
    if name in ("nan", "inf", "-inf"):
        flat[(7 * place + 3) % flat.numel()] = float(name)
    elif name in ("zeros", "large", "limits"):
        flat.copy_(_cycle(name, dtype, place, flat.numel()))
    return value


def _cycle(name: str, dtype: str, place: int, count: int) -> Tensor:
    if name == "limits":
        values = special_values(dtype)
    else:
        info = torch.finfo(DTYPES[dtype])
        if name == "zeros":
            tiny = info.smallest_normal * info.eps
            numbers = [0.0, -0.0, 1.0, tiny, -tiny, -1.0, -0.0, 1.0, 0.5]
        else:
            size = 2.0 ** math.floor(0.55 * math.log2(info.max))
            numbers = [1.5 * size, -1.25 * size, size, 1.75 * size, 0.5, -1.125 * size, -3.0]
        values = torch.tensor(numbers, dtype=torch.float64).to(DTYPES[dtype])
    return values[(torch.arange(count) + place) % len(values)]


def _strided(value: Tensor, place: int) -> Tensor:
    if value.dim() == 0:
        return value
    if value.dim() > 1 and place % 2 == 0:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    wide = value.new_zeros((*value.shape[:-1], value.shape[-1] * 2))
    wide[..., ::2] = value
    return wide[..., ::2]
