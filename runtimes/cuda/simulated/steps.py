"""Steps that compute one register from others: the active threads get the result, the others keep what they had."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, DType

Step = Callable[[Batch], None]
Function = Callable[..., Array]


def step_of_any(function: Callable[[Sequence[Array]], Array], target: int, dtype: DType) -> Step:
    """Returns the step ``target = function`` of any number of registers, seen as other types."""

    def run(batch: Batch) -> None:
        registers = batch.registers
        value = function(registers).view(dtype)
        merge = batch.merge
        registers[target] = value if merge is None else np.where(merge, value, registers[target])

    return run


def step_of_unary(function: Function, source: int, view: DType, target: int, dtype: DType) -> Step:
    """Returns the step ``target = function`` of one register, seen as other types."""

    def run(batch: Batch) -> None:
        registers = batch.registers
        value = function(registers[source].view(view)).view(dtype)
        merge = batch.merge
        registers[target] = value if merge is None else np.where(merge, value, registers[target])

    return run


def step_of_binary(
    function: Function, sources: tuple[int, int], views: tuple[DType, DType], target: int, dtype: DType
) -> Step:
    """Returns the step ``target = function`` of two registers, seen as other types."""
    a, b = sources
    a_view, b_view = views

    def run(batch: Batch) -> None:
        registers = batch.registers
        value = function(registers[a].view(a_view), registers[b].view(b_view)).view(dtype)
        merge = batch.merge
        registers[target] = value if merge is None else np.where(merge, value, registers[target])

    return run


def step_of_ternary(
    function: Function, sources: tuple[int, int, int], views: tuple[DType, DType, DType], target: int, dtype: DType
) -> Step:
    """Returns the step ``target = function`` of three registers, seen as other types."""
    a, b, c = sources
    a_view, b_view, c_view = views

    def run(batch: Batch) -> None:
        registers = batch.registers
        value = function(registers[a].view(a_view), registers[b].view(b_view), registers[c].view(c_view)).view(dtype)
        merge = batch.merge
        registers[target] = value if merge is None else np.where(merge, value, registers[target])

    return run
