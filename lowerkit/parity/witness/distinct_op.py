"""One op apart from where it stands in a model: the overload, its arguments, and the types of its tensors."""

# The type of overloads is private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils import _pytree as pytree

from lowerkit.parity.judge.operators import PARTIAL_SUMS
from lowerkit.program.dtypes import torch_name_of
from lowerkit.runtimes.expressions import Expr, evaluate, to_text

_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}

Extent: TypeAlias = Expr
"""A number, a name, or an expression over names."""


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
class Computed:
    """Stands for an expression over open extents.

    Attributes:
        expression: over names.
        found_at: of each name an operand and an axis whose extent is linear in it alone.
    """

    expression: Expr
    found_at: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Operand:
    """A tensor: element type as the manifest names it, and extents, open ones by name."""

    dtype: torch.dtype
    shape: tuple[Extent, ...]

    @property
    def text(self) -> str:
        """``f32[2,n]``."""
        return f"{torch_name_of(self.dtype)}[{','.join(map(to_text, self.shape))}]"


class LoneOp(Protocol):
    """What the witness needs of an op that is run alone; :class:`DistinctOp` says it of one of PyTorch."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def text(self) -> str:
        """Its arguments, for people."""
        ...

    @property
    def key(self) -> str:
        """What tells it apart from other ops."""
        ...

    @property
    def operands(self) -> Sequence[Operand]:
        """Its tensors."""
        ...

    @property
    def sizes(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Of each open extent a value, and its bounds."""
        ...

    @property
    def spread(self) -> float:
        """From which part of the type's largest number on its sums may leave the type in another order."""
        ...

    def shapes(self, sizes: Mapping[str, int] | None = None) -> list[tuple[int, ...]]:
        """Returns the operands' shapes at the given sizes, or those of the example."""
        ...

    def call(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Runs it by its owner."""
        ...

    def second_opinion(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Returns what another owner of it computes, where there is one."""
        ...


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
                return to_text(self.operands[value.number].shape[value.axis])
            if isinstance(value, Computed):
                return to_text(value.expression)
            if isinstance(value, tuple):
                return f"[{', '.join(map(show, value))}]"
            return str(value).removeprefix("torch.")

        parts = [*map(show, self.arguments), *(f"{name}={show(value)}" for name, value in self.named)]
        return ", ".join(parts)

    @property
    def key(self) -> str:
        """What tells it apart from other ops, as text."""
        return f"{self.name}({self.text}) {sizes_text(self.sizes)}"

    @property
    def spread(self) -> float:
        """From which part of the type's largest number on a result may be an infinity in one order of its sums."""
        return 1.0 if torch.Tag.pointwise in self.target.tags else PARTIAL_SUMS

    def second_opinion(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Returns what another owner of the op computes; PyTorch's have one."""
        return None

    def shapes(self, sizes: Mapping[str, int] | None = None) -> list[tuple[int, ...]]:
        """Returns the operands' shapes at the given sizes, or those of the example."""
        return shapes_at(self, sizes)

    def call(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Calls the op on tensors of the operands' types; those it would write to are copied."""
        writes = self.target._schema.is_mutable
        given = [tensor.clone() for tensor in tensors] if writes else list(tensors)

        def put(value: Any) -> Any:
            if isinstance(value, Place):
                return given[value.number]
            if isinstance(value, Size):
                return given[value.number].shape[value.axis]
            if isinstance(value, Computed):
                return self._computed(value, given)
            if isinstance(value, (list, tuple)):
                return [put(item) for item in value]
            return value

        return self.target(*map(put, self.arguments), **{name: put(value) for name, value in self.named})

    def _computed(self, size: Computed, tensors: Sequence[torch.Tensor]) -> Any:
        values = {
            name: _solved(self.operands[number].shape[axis], tensors[number].shape[axis])
            for name, number, axis in size.found_at
        }
        return value_of(size.expression, values)


def sizes_text(sizes: Mapping[str, tuple[int, int, int | None]]) -> str:
    """Returns the bounds of open extents as a key has them."""
    return ",".join(f"{name}:{low}..{high}" for name, (_, low, high) in sorted(sizes.items()))


def shapes_at(op: LoneOp, sizes: Mapping[str, int] | None) -> list[tuple[int, ...]]:
    """Returns the shapes of an op's operands at the given sizes, or those of the example."""
    values = {name: value for name, (value, _, _) in op.sizes.items()} | dict(sizes or {})
    return [tuple(evaluate(extent, values) for extent in operand.shape) for operand in op.operands]


def value_of(expression: Expr, values: Mapping[str, Any]) -> Any:
    """Returns an expression of values that know arithmetic: ints, sizes while an op is exported, dims of an export."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return values[expression]
    name, *parts = expression
    return _ARITHMETIC[str(name)](*(value_of(part, values) for part in parts))


def _solved(extent: Expr, value: Any) -> Any:
    """The value of the one name of ``extent``, a chain of sums and products with numbers."""
    while not isinstance(extent, str):
        assert isinstance(extent, tuple), "it is linear in a name"
        assert len(extent) == 3, "dims of a kernel are no extents of a model"
        name, left, right = extent
        if isinstance(left, int) and name == "sub":
            extent, value = right, left - value
            continue
        number, extent = (left, right) if isinstance(left, int) else (right, left)
        value = value // number if name == "mul" else value - number if name == "add" else value + number
    return value


def results_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of what an op gave, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
