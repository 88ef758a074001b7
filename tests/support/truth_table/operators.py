"""PyTorch's operators that are no rows of single values, with samples of their arguments from its own operator tests.

``op_db`` (OpInfo) is PyTorch's table of operators: reductions, scans, products, convolutions, pools, norms, losses,
moves, look-ups and the rest. A new operator is in it, so it is in the truth table.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowerkit.conformance.torch_cases import known_operators
from tests.support.truth_table.values import DTYPES

_SEED = 20260101
_MOST = {"f32": 3}
_MOST_OF_OTHERS = 1
_LOOKED_AT = 48
_LARGEST = 200_000
"""Elements of one argument; larger samples are left out."""


@dataclass(frozen=True)
class Drawn:
    """The arguments of one call, flattened; ``number`` is the position among all samples of the operator."""

    number: int
    leaves: tuple[Any, ...]
    structure: Any


@cache
def operator_rows() -> dict[str, Any]:
    """Returns the operators by name that are no single function of elements, which the grid has."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return {
        name: operator
        for name, operator in sorted(known_operators().items())
        if not isinstance(operator, (BinaryUfuncInfo, UnaryUfuncInfo))
    }


@lru_cache(maxsize=8)
def drawn(name: str, dtype: str) -> tuple[Drawn, ...]:
    """Returns the samples of an operator in an element type: a few, spread evenly; none where it does not take it.

    Raises:
        Exception: whatever the maker of the samples raises.
    """
    operator = known_operators()[name]
    if not operator.supports_dtype(DTYPES[dtype], "cpu"):
        return ()
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)
    found: list[Drawn] = []
    made = operator.sample_inputs("cpu", DTYPES[dtype], requires_grad=False)
    for number, sample in enumerate(itertools.islice(made, _LOOKED_AT)):
        leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and all(tensor.numel() <= _LARGEST for tensor in tensors):
            found.append(Drawn(number, tuple(leaves), structure))
    count = min(_MOST.get(dtype, _MOST_OF_OTHERS), len(found))
    return tuple(found[_chosen(index, count, len(found))] for index in range(count))


def _chosen(index: int, count: int, total: int) -> int:
    """Positions spread evenly; a single one in the middle, as the first samples are often of rank 0."""
    return total // 2 if count == 1 else index * (total - 1) // (count - 1)
