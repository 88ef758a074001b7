"""One op apart from where it stands in a model: the overload, its arguments, and the types of its tensors."""

# The type of overloads is private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from lowerkit.program.dtypes import torch_name_of

Extent: TypeAlias = int | str


@dataclass(frozen=True)
class Place:
    """Stands for the tensor operand of this number among an op's arguments."""

    number: int


@dataclass(frozen=True)
class Size:
    """Stands for an extent: dim ``axis`` of operand ``number``."""

    number: int
    axis: int


@dataclass(frozen=True)
class Operand:
    """A tensor: element type as the manifest names it, and extents, open ones by name."""

    dtype: torch.dtype
    shape: tuple[Extent, ...]

    @property
    def text(self) -> str:
        """``f32[2,n]``."""
        return f"{torch_name_of(self.dtype)}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class DistinctOp:
    """One op, apart from where it stands.

    Attributes:
        target: the overload.
        arguments: positional ones, with :class:`Place` for tensors and :class:`Size` for open extents.
        named: those by keyword.
        operands: the tensors.
        sizes: of each open dim its value in the example, and its bounds (None: no upper one).
    """

    target: Any
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]
    operands: tuple[Operand, ...]
    sizes: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict[str, tuple[int, int, int | None]])

    @property
    def name(self) -> str:
        """``aten.add.Tensor``."""
        return str(self.target)

    @property
    def text(self) -> str:
        """Its arguments: ``f32[2,n0], f32[9], 1``."""

        def show(value: Any) -> str:
            if isinstance(value, Place):
                return self.operands[value.number].text
            if isinstance(value, Size):
                return str(self.operands[value.number].shape[value.axis])
            if isinstance(value, tuple):
                return f"[{', '.join(map(show, value))}]"
            return str(value).removeprefix("torch.")

        parts = [*map(show, self.arguments), *(f"{name}={show(value)}" for name, value in self.named)]
        return ", ".join(parts)

    @property
    def key(self) -> str:
        """What tells it apart from other ops, as text."""
        sizes = ",".join(f"{name}:{low}..{high}" for name, (_, low, high) in sorted(self.sizes.items()))
        return f"{self.name}({self.text}) {sizes}"

    def shapes(self, sizes: Mapping[str, int] | None = None) -> list[tuple[int, ...]]:
        """Returns the operands' shapes at the given sizes, or those of the example."""
        values = {name: value for name, (value, _, _) in self.sizes.items()} | dict(sizes or {})
        return [
            tuple(extent if isinstance(extent, int) else values[extent] for extent in operand.shape)
            for operand in self.operands
        ]

    def call(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Calls the op on tensors of the operands' types; those it would write to are copied."""
        writes = self.target._schema.is_mutable
        given = [tensor.clone() for tensor in tensors] if writes else list(tensors)

        def put(value: Any) -> Any:
            if isinstance(value, Place):
                return given[value.number]
            if isinstance(value, Size):
                return given[value.number].shape[value.axis]
            if isinstance(value, (list, tuple)):
                return [put(item) for item in value]
            return value

        return self.target(*map(put, self.arguments), **{name: put(value) for name, value in self.named})


def results_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of what an op gave, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
