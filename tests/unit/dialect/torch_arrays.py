"""Arrays as tensors and back, bf16 too, and how near an array has to be to a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

Reference = Callable[..., list[Any]]


def torch_of(array: Any) -> torch.Tensor:
    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def numpy_of(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def close(found: Any, wanted: torch.Tensor, budget: float = 1e-12) -> None:
    expected = numpy_of(wanted.contiguous())
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=budget, atol=budget)


def normal(random: np.random.Generator, *shape: int, dtype: Any = np.float64) -> Any:
    return random.standard_normal(shape).astype(dtype)


EXTREMES = np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, -np.inf], [-np.inf] * 3, [1e38, 3e38, -1e38]], np.float32)
