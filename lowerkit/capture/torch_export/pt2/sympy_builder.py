"""Makes sympy expressions of the trees that :mod:`expression_parser` reads.

Sizes become what torch's deserializer wants, guards conditions on the sizes of inputs.

sympy computes while an expression is built, so the sizes of its numbers are bounded here: a short text may ask for a
number of gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import sympy
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo

from lowerkit.capture.torch_export.pt2.expression_parser import parse_symbolic
from lowerkit.capture.torch_export.pt2.expression_tree import Expression, Number, Source, Symbol

MAXIMUM_BITS = 256
"""Of an integer."""
MAXIMUM_EXPONENT = 64
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"}
"""Functions whose second argument says how large the result is."""


@cache
def _makers() -> dict[str, Callable[..., Any]]:
    """The sympy function of each function of the tree. torch's ``Max`` is its own; as text it is sympy's name."""
    own = _words(
        "FloorDiv CeilDiv CleanDiv Mod PythonMod IntTrueDiv FloatTrueDiv PowByNatural FloatPow LShift RShift "
        "RoundDecimal Where ModularIndexing ToFloat Identity FloorToInt CeilToInt TruncToInt RoundToInt TruncToFloat"
    )
    plain = _words("Add Mul Pow Max Min And Or Not Eq Ne Lt Le Gt Ge Abs")
    return {
        **{name: getattr(functions, name) for name in own},
        **{name: getattr(sympy, name) for name in plain},
        "TrueDiv": lambda over, under: sympy.Mul(over, sympy.Pow(under, sympy.Integer(-1))),
        "Sqrt": functions.OpaqueUnaryFn_sqrt,
    }


@cache
def _guard_makers() -> dict[str, Callable[..., Any]]:
    def power(base: Any, exponent: Any) -> Any:
        if not exponent.is_Integer or exponent < 0:
            raise ValueError(f"a power of {exponent}")
        return sympy.Pow(base, exponent)

    own = {"Max": functions.Max, "Min": functions.Min, "Mod": functions.PythonMod, "TrueDiv": functions.IntTrueDiv}
    return {**_makers(), **own, "Pow": power}


def _words(text: str) -> list[str]:
    return text.split()


Sources = Callable[[Source], Any]
"""From an argument's size to an int or its expression; LookupError where the argument has none."""


@dataclass(frozen=True)
class _Dialect:
    """How one kind of text is read: what its functions are, what it may name, how large its integers are."""

    makers: dict[str, Callable[..., Any]]
    sources: Sources | None
    bits: int


def to_sympy(text: str) -> sympy.Basic:
    """Returns the sympy expression that ``text``, a size as sympy writes it, describes.

    Raises:
        ValueError: the text is not in the grammar, names an argument of the model, or computes numbers beyond the
            bounds.
    """
    return _read(text, _Dialect(_makers(), None, MAXIMUM_BITS))


def guard_to_sympy(text: str, sources: Sources) -> sympy.Basic:
    """Returns the condition that ``text`` describes: Python on integers, so ``/`` and ``%`` are Python's.

    Raises:
        ValueError: as of :func:`to_sympy`; or the text is an expression but no condition.
    """
    found = _read(text, _Dialect(_guard_makers(), sources, 63))
    if not isinstance(found, Relational | BooleanFunction | BooleanAtom):
        raise ValueError(f"{text[:80]!r} is no condition")
    return found


def _read(text: str, dialect: _Dialect) -> sympy.Basic:
    try:
        return _built(parse_symbolic(text), dialect)
    except (  # what sympy raises for arguments that make no sense
        TypeError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        NotImplementedError,
        RecursionError,
    ) as error:
        raise ValueError(f"{text[:80]!r} is no expression of sizes: {error}") from error


def _built(expression: Expression, dialect: _Dialect) -> sympy.Basic:
    if isinstance(expression, Symbol | Source):
        return _named(expression, dialect.sources)
    if isinstance(expression, Number):
        return _bounded(_constant(expression.value), dialect.bits)
    arguments = [_built(argument, dialect) for argument in expression.arguments]
    if expression.function in _POWERS and arguments[1].is_number and sympy.Abs(arguments[1]) > MAXIMUM_EXPONENT:
        raise ValueError(f"{expression.function} by {arguments[1]}")
    return _bounded(dialect.makers[expression.function](*arguments), dialect.bits)


def _named(expression: Symbol | Source, sources: Sources | None) -> sympy.Basic:
    """A size names symbols, a condition names sizes of arguments."""
    if isinstance(expression, Symbol):
        if sources is not None:
            raise ValueError(f"{expression.name!r} is no size of an argument")
        return sympy.Symbol(expression.name, **dict(expression.assumptions))
    try:
        if sources is not None:
            return sympy.sympify(sources(expression))
    except LookupError:
        pass
    raise ValueError(f"{expression.path[0]!r} is no size")


def _constant(value: float) -> sympy.Basic:
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, int):
        return sympy.Integer(value)
    if value in (float("inf"), float("-inf")):
        return int_oo if value > 0 else -int_oo
    return sympy.Float(value)


def _bounded(found: Any, bits: int) -> Any:
    if not isinstance(found, sympy.Basic):
        raise TypeError(f"{found!r} is no expression")
    if found in (sympy.zoo, sympy.nan):
        raise ValueError("a division by zero")
    if isinstance(found, sympy.Rational) and max(int(found.p).bit_length(), int(found.q).bit_length()) > bits:
        raise ValueError(f"a number of more than {bits} bits")
    return found
