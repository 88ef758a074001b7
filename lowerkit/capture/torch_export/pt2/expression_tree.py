"""The tree of a symbolic expression: what :mod:`expression_parser` reads text into."""

from __future__ import annotations

from dataclasses import dataclass

MAXIMUM_PARTS = 4096
"""Of one expression: numbers, symbols and functions."""


@dataclass(frozen=True)
class Number:
    """A constant; ``bool`` for true and false."""

    value: int | float | bool


@dataclass(frozen=True)
class Symbol:
    """A symbolic size (``s77``) with what is known of it, as (``"positive"``, True)."""

    name: str
    assumptions: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Source:
    """An argument (``path`` starts with its name; then keys, indices and attributes of what it nests).

    ``measure`` is ``size``, ``stride``, ``storage_offset``, ``item`` or empty (the argument is a number itself);
    ``axis`` is that of a size or stride.
    """

    path: tuple[str | int, ...]
    measure: str = ""
    axis: int = 0


@dataclass(frozen=True)
class Call:
    """A function of :data:`FUNCTIONS` on its arguments."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Number | Symbol | Source | Call

FUNCTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("Add", "Mul", "Max", "Min", "And", "Or"), (1, MAXIMUM_PARTS)),
    **dict.fromkeys(("Eq", "Ne", "Lt", "Le", "Gt", "Ge"), (2, 2)),
    **dict.fromkeys(("FloorDiv", "CeilDiv", "CleanDiv", "Mod", "PythonMod", "TrueDiv", "IntTrueDiv"), (2, 2)),
    **dict.fromkeys(("FloatTrueDiv", "Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"), (2, 2)),
    **dict.fromkeys(("Where", "ModularIndexing"), (3, 3)),
    **dict.fromkeys(("Not", "Abs", "ToFloat", "Identity", "FloorToInt", "CeilToInt", "TruncToInt"), (1, 1)),
    **dict.fromkeys(("RoundToInt", "TruncToFloat", "Sqrt"), (1, 1)),
}
"""The functions of the tree: fewest and most arguments."""
