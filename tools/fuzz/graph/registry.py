"""Calls of the operators in PyTorch's own registry (``op_db``), with its own sample arguments."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch

_SAMPLES = 12
_MOST_ELEMENTS = 4000
_EXCLUDED = (
    "rand", "normal", "bernoulli", "multinomial", "dropout", "empty", "uniform", "exponential", "cauchy", "geometric",
    "log_normal", "sparse", "_segment", "jiterator", "nonzero", "unique", "item", "is_", "equal", "allclose",
    "to_sparse",
    "stft", "masked_select", "histogram", "bincount", "_batch_norm_with_update", "resize", "set_", "rrelu",
    "svd_lowrank",
    "pca_lowrank", "as_strided_scatter", "block_diag", "meshgrid", "fft", "tensorsolve", "backward", "unpool",
    "native_drop",
    "view_as_complex", "complex", "polar", "angle", "torch.ops", "flash", "efficient", "__r", "argwhere", "rot90",
    "linalg", "cholesky", "svd", "eig", "lu", "qr", "ormqr", "geqrf", "triangular_solve", "logdet", "lstsq", "pinverse",
)  # fmt: skip


@functools.cache
def entries() -> list[Any]:
    """The entries of the registry that random graphs use, those of one op and another variant included."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [entry for entry in op_db if not any(part in entry.name for part in _EXCLUDED)]


@functools.cache
def by_name() -> dict[str, Any]:
    return {entry.formatted_name: entry for entry in entries()}


def registered(name: str) -> Any:
    """The function of an entry."""
    return by_name()[name].op


def sample(rng: random.Random, dtype: torch.dtype) -> tuple[str, Any] | None:
    """An entry's name and one of its samples for ``dtype``; None where the entry does not take it."""
    entry = rng.choice(entries())
    if dtype not in entry.dtypes:
        return None
    torch.manual_seed(rng.randrange(1 << 30))
    try:
        chosen: Any = None
        for number, candidate in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=False)):
            if number >= _SAMPLES * 3:
                break
            if rng.random() < 1 / (number + 1):
                chosen = candidate
    except Exception:
        return None
    if chosen is None:
        return None
    return entry.formatted_name, chosen


def text_of(name: str) -> str:
    """How Python calls an entry: ``torch.add``, or ``registered(...)`` where it has no such name."""
    entry = by_name()[name]
    value: Any = torch
    for part in entry.name.split("."):
        value = getattr(value, part, None)
    plain = value is not None and value is entry.op
    return f"torch.{entry.name}" if plain else f"registered({name!r})"
