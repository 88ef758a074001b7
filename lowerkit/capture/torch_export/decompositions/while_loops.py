"""Loops in decompositions, so that a program is as large for every matrix and every degree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop_op

Body = Callable[..., tuple[Tensor, ...]]

_while_loop: Any = while_loop_op  # its type says one carried value


def run_while(
    more: Callable[..., Tensor], body: Body, carried: tuple[Tensor, ...], constant: tuple[Tensor, ...] = ()
) -> tuple[Tensor, ...]:
    """Runs ``body(*carried, *constant)`` while ``more`` of the same is true; returns the last carried values.

    Both must read no tensors but those that they are given; carried values must share no memory.
    """
    return tuple(_while_loop(more, body, carried, constant))


def run_turns(
    count: int, body: Body, carried: tuple[Tensor, ...], constant: tuple[Tensor, ...] = ()
) -> tuple[Tensor, ...]:
    """Runs ``body(turn, *carried, *constant)`` for turn 0 to count - 1, with the turn as an int64 of rank 0.

    The body returns the next values of ``carried``, of the same shapes and types. It must not read tensors of the
    function around it, only what it is given.
    """

    def more(turn: Tensor, *_: Tensor) -> Tensor:
        return turn < count

    def step(turn: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (turn + 1, *(value.contiguous() for value in body(turn, *values)))

    # Carried values must share no memory with each other or with what is read.
    start = tuple(value.clone(memory_format=torch.contiguous_format) for value in carried)
    read = tuple(value.clone(memory_format=torch.contiguous_format) for value in constant)
    return run_while(more, step, (torch.zeros((), dtype=torch.int64), *start), read)[1:]


def row_of(matrix: Tensor, turn: Tensor) -> Tensor:
    """Row ``turn`` of each matrix, as a matrix of one row."""
    return matrix.index_select(-2, turn.reshape(1))


def column_of(matrix: Tensor, turn: Tensor) -> Tensor:
    """Column ``turn`` of each matrix, as a matrix of one column."""
    return matrix.index_select(-1, turn.reshape(1))


def places_of(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of rows and of columns, to compare with a turn."""
    return torch.arange(matrix.shape[-2]).unsqueeze(-1), torch.arange(matrix.shape[-1]).unsqueeze(0)
