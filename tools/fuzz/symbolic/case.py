"""One case of ``tools/fuzz/symbolic_sizes.py``: what to build, and the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Calls the function."""
        return self.function(*tensors)


class Wrapped(nn.Module):
    """A module whose results are flattened to tensors."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Calls the module."""
        result = self.inner(*tensors)
        return result[0] if isinstance(result, tuple) else result


@dataclass(frozen=True)
class Case:
    """What to build, the shapes of its inputs, axes that stay fixed, what sizes should often be multiples of.

    ``below`` makes the inputs after the first integers below it.
    """

    make: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    fixed: tuple[int, ...] = ()
    multiple: int = 1
    below: int = 0

    def module(self) -> nn.Module:
        """Returns a module; those of classes are made anew, with the same weights for one seed."""
        torch.manual_seed(0)
        made = self.make() if isinstance(self.make, type) or getattr(self.make, "is_maker", False) else None
        return Wrapped(made) if made is not None else Function(self.make)

    def inputs(self, shapes: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        """Returns inputs of these shapes, the same for the same shapes."""
        generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
        return tuple(
            torch.randint(0, self.below, shape, generator=generator)
            if self.below and number
            else torch.randn(shape, generator=generator)
            for number, shape in enumerate(shapes)
        )
