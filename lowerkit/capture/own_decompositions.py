"""Decompositions that PyTorch does not have, or has with ops that we lack: all of ``lowerkit.capture.spelled_out``.

A function that cannot take its arguments returns ``NotImplemented``: the op stays, and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lowerkit.capture.spelled_out import (
    bits,
    determinants,
    error_functions,
    experts,
    functions,
    gamma,
    grid_samples,
    integer_powers,
    losses,
    movement,
    orders,
    polynomials,
    products,
    quantized,
    recurrent,
    reflections,
    scans,
    singular_values,
    triangles,
    windows,
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
    **functions.TABLE,
    **orders.TABLE,
    **scans.TABLE,
    **bits.TABLE,
    **movement.TABLE,
    **gamma.TABLE,
    **grid_samples.TABLE,
    **integer_powers.TABLE,
    **losses.TABLE,
    **error_functions.TABLE,
    **polynomials.TABLE,
    **products.TABLE,
    **triangles.TABLE,
    **determinants.TABLE,
    **reflections.TABLE,
    **singular_values.TABLE,
    **quantized.TABLE,
    **recurrent.TABLE,
    **windows.TABLE,
}

OWN_DECOMPOSITIONS = {target: _on_their_device(function) for target, function in _ALL.items()}
"""By overload."""

OWN_BY_NAME = {
    name: _on_their_device(function)
    for name, function in {**bits.BY_NAME, **experts.BY_NAME, **quantized.BY_NAME}.items()
}
"""By the text of the overload."""
