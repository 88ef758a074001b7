"""A random ONNX node under construction: its opset, operands, constants and attributes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

OPSETS = (7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)
FLOATS = (np.float32, np.float32, np.float32, np.float64, np.float16)
INTEGERS = (np.int64, np.int32, np.int8, np.uint8, np.int16)


@dataclass
class Draft:
    """One node under construction; operands in order, ``constants`` names those that are initializers."""

    rng: random.Random
    op_type: str
    opset: int
    operands: list[str] = field(default_factory=list[str])
    values: dict[str, Array] = field(default_factory=dict[str, Array])
    constants: set[str] = field(default_factory=set[str])
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1

    def take(self, value: Array | None, *, constant: bool | None = None) -> Array | None:
        """Adds an operand, None for an absent one; a constant one now and then if not said."""
        if value is None:
            self.operands.append("")
            return None
        name = f"x{len(self.operands)}"
        self.operands.append(name)
        self.values[name] = value
        if constant if constant is not None else self.rng.random() < 0.15:
            self.constants.add(name)
        return value

    def set(self, **attributes: Any) -> None:
        """Adds attributes; None leaves one out."""
        self.attributes |= {name: value for name, value in attributes.items() if value is not None}

    def maybe(self, **attributes: Any) -> None:
        """Adds each attribute with a chance of two in three: defaults count."""
        self.set(**{name: value for name, value in attributes.items() if self.rng.random() < 0.67})

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    # operands

    def any_type(self) -> Any:
        return self.pick(np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_)

    def numbers(self, shape: Sequence[int], dtype: Any = None) -> Array:
        """Normal floats, small integers, bools; special values now and then."""
        dtype = dtype or self.pick(*FLOATS)
        generator = np.random.default_rng(self.rng.randrange(1 << 31))
        kind = np.dtype(dtype)
        if kind == np.bool_:
            return generator.integers(0, 2, shape).astype(np.bool_)
        if kind.kind in "iu":
            return generator.integers(0 if kind.kind == "u" else -9, 10, shape).astype(dtype)
        value = np.asarray(generator.standard_normal(shape) * self.pick(1, 1, 1, 5)).astype(dtype)
        if self.rng.random() < 0.05 and value.size:
            value.reshape(-1)[self.rng.randrange(value.size)] = self.pick(np.nan, np.inf, -np.inf, -0.0)
        return value

    def indices(self, shape: Sequence[int], size: int, *, negative: bool = True, dtype: Any = None) -> Array:
        generator = np.random.default_rng(self.rng.randrange(1 << 31))
        low = -size if negative and self.rng.random() < 0.4 else 0
        return generator.integers(low, size, shape).astype(dtype or self.pick(np.int64, np.int64, np.int32))

    def shape(self, rank: int | None = None, extents: Sequence[int] = (1, 2, 3, 4, 5, 7)) -> tuple[int, ...]:
        count: int = self.pick(1, 2, 3, 3, 4) if rank is None else rank
        return tuple(self.rng.choice(extents) for _ in range(count))

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with ``shape``: dims of 1, leading ones missing."""
        found = tuple(1 if self.rng.random() < 0.3 else extent for extent in shape)
        start = self.rng.randrange(len(found) + 1) if self.rng.random() < 0.3 else 0
        return found[start:]

    def axis(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank)

    def axes(self, rank: int) -> list[int]:
        found = self.rng.sample(range(rank), self.rng.randrange(1, rank + 1))
        return [axis - rank if self.opset >= 11 and self.rng.random() < 0.3 else axis for axis in found]

    def list_of(self, name: str, numbers: Sequence[int], since: int) -> None:
        """A list that was an attribute before opset ``since`` and is an operand from there on."""
        if self.opset >= since:
            self.take(np.array(numbers, np.int64), constant=True)
        else:
            self.set(**{name: list(numbers)})


Case = Callable[[Draft], None]
