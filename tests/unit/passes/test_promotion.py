"""The table of common element types is PyTorch's own rule, for all pairs and standings."""

# PyTorch's rule has a private name; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from lowerkit.passes.raising.core.promotion import NUMBER_DTYPES, WIDTHS, Standing, promoted, wrapped

_DTYPES = {
    "i1": torch.bool,
    "ui8": torch.uint8,
    "si8": torch.int8,
    "si16": torch.int16,
    "si32": torch.int32,
    "si64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
_WIDE_UNSIGNED = {"ui16": torch.uint16, "ui32": torch.uint32, "ui64": torch.uint64}
"""Of ONNX alone, which never mixes them with others."""
_NUMBERS: dict[str, Any] = {"!torch.bool": True, "!torch.int": 3, "!torch.float": 2.5}


def _operands() -> list[tuple[str, Standing, Any]]:
    tensors = [
        (name, standing, torch.empty((2,) if standing is Standing.TENSOR else (), dtype=dtype, device="meta"))
        for name, dtype in _DTYPES.items()
        for standing in (Standing.TENSOR, Standing.RANK_0)
    ]
    numbers = [(NUMBER_DTYPES[kind], Standing.NUMBER, number) for kind, number in _NUMBERS.items()]
    return [*tensors, *numbers]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_operands_come_to_the_type_of_pytorch(count: int) -> None:
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    compared = 0
    for chosen in itertools.combinations_with_replacement(_operands(), count):
        if not any(isinstance(value, torch.Tensor) for *_, value in chosen):
            continue
        wanted = elementwise_dtypes(*(value for *_, value in chosen), type_promotion_kind=kind)[0]
        for order in (chosen, chosen[::-1]):
            assert _DTYPES[promoted((dtype, standing) for dtype, standing, _ in order)] is wanted, order
            compared += 1
    assert compared > 20**count / 4


@pytest.mark.parametrize("dtype", [name for name in WIDTHS if "i" in name])
@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, 255, 256, -129, 300, 2**31, 2**40 + 7, 2.9, -2.9, -0.5])
def test_numbers_are_cut_off_as_a_conversion_in_c_does(dtype: str, number: float) -> None:
    wanted = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
    assert wrapped(number, dtype) == int(wanted.to((_DTYPES | _WIDE_UNSIGNED)[dtype]).numpy())
