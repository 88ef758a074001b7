"""Control flow as random functions write it: Python's own when run eagerly, PyTorch's operators under a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def cond(predicate: torch.Tensor, yes: Callable[..., Any], no: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """``torch.cond``; eagerly without ``torch.compile``, which takes seconds."""
    if torch.compiler.is_compiling():
        return torch.cond(predicate, yes, no, operands)
    return (yes if bool(predicate) else no)(*operands)


def while_loop(goes_on: Callable[..., Any], body: Callable[..., Any], carried: tuple[Any, ...]) -> Any:
    """``torch.while_loop``."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import while_loop as loop

        return loop(goes_on, body, carried)
    while bool(goes_on(*carried)):
        carried = body(*carried)
    return carried


def scan(step: Callable[..., Any], start: torch.Tensor, rows: torch.Tensor) -> Any:
    """``torch.scan`` over axis 0 of ``rows``: the last carried value and the stacked results."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import scan as operator

        return operator(step, start, rows, dim=0)
    carried, results = start, []
    for row in rows:
        carried, result = step(carried, row)
        results.append(result)
    return carried, torch.stack(results)
