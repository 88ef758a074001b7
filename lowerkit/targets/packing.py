"""How the bytes of a weight are laid out at compile time for the kernel that reads them; targets register layouts.

A layout keeps the element type. It is named by ``kind`` and ``parameters``, plain values that go into cache keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Layout:
    """One kind of packing.

    Attributes:
        shape: packed shape of a weight of the given shape.
        apply: the packed array, contiguous.
        has_rows: whether a look-up of rows, with these parameters, can read them where they lie.
    """

    shape: Callable[[Sequence[int], dict[str, int]], tuple[int, ...]]
    apply: Callable[[Array, dict[str, int]], Array]
    has_rows: Callable[[dict[str, int]], bool] = lambda _parameters: False


LAYOUTS: dict[str, Layout] = {}
"""Layouts by kind."""


def register_layout(kind: str, layout: Layout) -> None:
    """Adds a layout, also from a package outside this one.

    Raises:
        ValueError: the kind is taken.
    """
    if kind in LAYOUTS:
        raise ValueError(f"the layout {kind!r} exists already")
    LAYOUTS[kind] = layout


@dataclass(frozen=True)
class Packing:
    """How one weight operand of a kernel is laid out.

    Attributes:
        kind: a key of :data:`LAYOUTS`.
        parameters: its parameters, sorted by name.
    """

    kind: str
    parameters: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, kind: str, **parameters: int) -> Packing:
        """Builds a packing with its parameters in canonical order."""
        assert kind in LAYOUTS, f"unknown layout {kind}"
        return cls(kind, tuple(sorted(parameters.items())))

    def apply(self, array: Array) -> Array:
        """Returns the packed weight, contiguous and of the same element type."""
        return np.ascontiguousarray(LAYOUTS[self.kind].apply(array, dict(self.parameters)))

    @property
    def has_rows(self) -> bool:
        """Whether a look-up of rows can read them where they lie."""
        return LAYOUTS[self.kind].has_rows(dict(self.parameters))

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the packed weight, without its values."""
        return LAYOUTS[self.kind].shape(shape, dict(self.parameters))
