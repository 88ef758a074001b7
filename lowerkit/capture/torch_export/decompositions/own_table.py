"""Decompositions that PyTorch does not have, or has with ops that we lack: all of this folder.

A function that cannot take its arguments returns ``NotImplemented``: the op stays, and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.decompositions import (
    bilinear,
    embedding_bags,
    grid_sample,
    losses,
    masked_writes,
    mixture_of_experts,
    order_statistics,
    quantized,
    recurrent,
    resize,
    scans,
    strided_moves,
    windows,
)
from lowerkit.capture.torch_export.decompositions.linear_algebra import (
    determinants,
    householder_qr,
    jacobi_svd,
    lu_cholesky,
)
from lowerkit.capture.torch_export.decompositions.special_functions import (
    elementary,
    error_functions,
    float_bits,
    gamma,
    integer_powers,
    orthogonal_polynomials,
)


def _on_their_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors that ``function`` makes stand on the device of its arguments: a model may have no data at all."""

    def compute(*arguments: Any, **named: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
        if not tensors or tensors[0].device.type == "cpu":
            return function(*arguments, **named)
        with tensors[0].device:
            return function(*arguments, **named)

    return compute


_ALL: dict[Any, Callable[..., Any]] = {
    **elementary.TABLE,
    **order_statistics.TABLE,
    **scans.TABLE,
    **float_bits.TABLE,
    **strided_moves.TABLE,
    **gamma.TABLE,
    **grid_sample.TABLE,
    **integer_powers.TABLE,
    **losses.TABLE,
    **masked_writes.TABLE,
    **error_functions.TABLE,
    **orthogonal_polynomials.TABLE,
    **bilinear.TABLE,
    **embedding_bags.TABLE,
    **lu_cholesky.TABLE,
    **determinants.TABLE,
    **householder_qr.TABLE,
    **jacobi_svd.TABLE,
    **quantized.TABLE,
    **recurrent.TABLE,
    **resize.TABLE,
    **windows.TABLE,
}

OWN_DECOMPOSITIONS = {target: _on_their_device(function) for target, function in _ALL.items()}
"""By overload."""

OWN_BY_NAME = {
    name: _on_their_device(function)
    for name, function in {**float_bits.BY_NAME, **mixture_of_experts.BY_NAME, **quantized.BY_NAME}.items()
}
"""By the text of the overload."""
