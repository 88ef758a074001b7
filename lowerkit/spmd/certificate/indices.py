"""Index arithmetic in a normal form: which element of one tensor an element of another one is.

Vocabulary
    index   a sum of atoms with integer factors, and a constant
    atom    a variable, or the floor of an index divided by a positive number
    ranges  variable -> how many values it takes, from 0; None where that is not known (an open dimension)

A remainder is written ``x - c * floor(x / c)``, so that cutting a dimension and joining it again gives what was there.
Two indices of one normal form are equal; of two forms, :func:`equal` asks z3 for a value that tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from lowerkit.spmd.certificate.solver import Integer, Solver

Ranges: TypeAlias = Mapping[str, int | None]


@dataclass(frozen=True)
class Floor:
    """The floor of ``of / by``; ``by`` is positive."""

    of: Index
    by: int

    def __str__(self) -> str:
        return f"({self.of} / {self.by})"


Atom: TypeAlias = str | Floor


@dataclass(frozen=True)
class Index:
    """A sum: (atom, factor) in the order of the atoms' text, none of them 0, and a constant."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int = 0

    def __str__(self) -> str:
        parts = [str(atom) if factor == 1 else f"{factor}*{atom}" for atom, factor in self.terms]
        return " + ".join([*parts, *([str(self.constant)] if self.constant or not parts else [])])

    @property
    def variables(self) -> frozenset[str]:
        """The variables that it depends on."""
        return _variables(self)


@lru_cache(maxsize=1 << 14)
def _variables(index: Index) -> frozenset[str]:
    found: set[str] = set()
    for atom, _ in index.terms:
        found |= {atom} if isinstance(atom, str) else _variables(atom.of)
    return frozenset(found)


def number(value: int) -> Index:
    """Returns a constant."""
    return Index((), value)


def variable(name: str) -> Index:
    """Returns a variable."""
    return Index(((name, 1),))


def total(*summands: tuple[Index, int]) -> Index:
    """Returns the sum of indices with factors."""
    factors: dict[Atom, int] = {}
    constant = 0
    for index, factor in summands:
        constant += index.constant * factor
        for atom, own in index.terms:
            factors[atom] = factors.get(atom, 0) + own * factor
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    return Index(tuple(sorted(kept, key=_text)), constant)


def _text(term: tuple[Atom, int]) -> str:
    return str(term[0])


def bounds(index: Index, ranges: Ranges) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest value, each None where there is no such bound."""
    low: int | None = index.constant
    high: int | None = index.constant
    for atom, factor in index.terms:
        least, most = _atom_bounds(atom, ranges)
        if factor < 0:
            least, most = most, least
        low = None if low is None or least is None else low + factor * least
        high = None if high is None or most is None else high + factor * most
    return low, high


def _atom_bounds(atom: Atom, ranges: Ranges) -> tuple[int | None, int | None]:
    if isinstance(atom, str):
        count = ranges.get(atom)
        return 0, None if count is None else max(count - 1, 0)
    low, high = bounds(atom.of, ranges)
    return (None if low is None else low // atom.by, None if high is None else high // atom.by)


def quotient(index: Index, by: int, ranges: Ranges) -> Index:
    """Returns the floor of ``index / by``."""
    if by == 1:
        return index
    outside = total(*((Index(((atom, 1),)), factor // by) for atom, factor in index.terms if factor % by == 0))
    inside = [(atom, factor) for atom, factor in index.terms if factor % by]
    constant, rest = divmod(index.constant, by)
    left = Index(tuple(inside), rest)
    low, high = bounds(left, ranges)
    if low is not None and high is not None and low // by == high // by:
        return total((outside, 1), (number(constant + low // by), 1))
    return total((outside, 1), (number(constant), 1), (_floor(left, by, ranges), 1))


def _floor(left: Index, by: int, ranges: Ranges) -> Index:
    """Leaves out the terms that never reach the next multiple: floor((6a + b) / 12) is floor(a / 2) for b below 6."""
    for step in sorted({gcd(factor, by) for _, factor in left.terms}, reverse=True):
        small = Index(tuple(term for term in left.terms if term[1] % step), left.constant)
        large = [term for term in left.terms if term[1] % step == 0]
        low, high = bounds(small, ranges)
        if step > 1 and large and low is not None and high is not None and low // step == high // step:
            reduced = Index(tuple((atom, factor // step) for atom, factor in large), low // step)
            if by == step:
                return reduced
            return Index(((Floor(reduced, by // step), 1),)) if step != by else reduced
    if len(left.terms) == 1 and left.constant == 0 and left.terms[0][1] == 1:
        atom = left.terms[0][0]
        if isinstance(atom, Floor):  # floor(floor(x / a) / b) is floor(x / ab)
            return Index(((Floor(atom.of, atom.by * by), 1),))
    return Index(((Floor(left, by), 1),))


def remainder(index: Index, by: int, ranges: Ranges) -> Index:
    """Returns ``index`` modulo ``by``."""
    return total((index, 1), (quotient(index, by, ranges), -by))


def substitute(index: Index, values: Mapping[str, Index], ranges: Ranges) -> Index:
    """Replaces variables, all at once; ``ranges`` are those of the variables in what comes instead."""
    if not index.variables & values.keys():
        return index
    parts: list[tuple[Index, int]] = [(number(index.constant), 1)]
    for atom, factor in index.terms:
        if isinstance(atom, str):
            parts.append((values.get(atom, variable(atom)), factor))
        else:
            parts.append((quotient(substitute(atom.of, values, ranges), atom.by, ranges), factor))
    return total(*parts)


def equal(one: Index, other: Index, ranges: Ranges, solver: Solver) -> bool:
    """Whether two indices are equal for all values of their variables; False also where it cannot be decided."""
    if one == other:
        return True
    difference = total((one, 1), (other, -1))
    if not any(isinstance(atom, Floor) for atom, _ in difference.terms):
        # A sum of variables that is not the constant 0 is another number somewhere, unless a variable has one value.
        live = [term for term in difference.terms if ranges.get(str(term[0])) != 1]
        return not live and difference.constant == 0

    def differ(variables: Callable[[str], Integer]) -> Integer:
        return _integer(difference, variables) != 0

    names = sorted(difference.variables)
    return solver.never({name: ranges.get(name) for name in names}, differ)


def within(index: Index, extent: int, ranges: Ranges, solver: Solver) -> bool:
    """Whether an index is at least 0 and below an extent for all values of its variables; False also if undecided."""
    low, high = bounds(index, ranges)
    if low is not None and high is not None and 0 <= low <= high < extent:
        return True
    if not any(isinstance(atom, Floor) for atom, _ in index.terms):
        return False  # the bounds of a sum of variables are reached

    def inside(variables: Callable[[str], Integer]) -> Integer:
        return _integer(index, variables)

    counts = {name: ranges.get(name) for name in sorted(index.variables)}
    below = solver.never(counts, lambda variables: inside(variables) < 0)
    return below and solver.never(counts, lambda variables: inside(variables) >= extent)


def _integer(index: Index, variables: Callable[[str], Integer]) -> Integer:
    result: Integer = index.constant
    for atom, factor in index.terms:
        value = variables(atom) if isinstance(atom, str) else _integer(atom.of, variables) / atom.by
        result = result + factor * value
    return result
