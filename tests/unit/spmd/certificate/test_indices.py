"""Index arithmetic: normal forms have the value of what they were made of, and equality is decided."""

from __future__ import annotations

import random

import pytest

from lowerkit.spmd.certificate.indices import (
    Floor,
    Index,
    bounds,
    equal,
    number,
    quotient,
    remainder,
    substitute,
    total,
    variable,
)
from lowerkit.spmd.certificate.solver import Solver

RANGES = {"r": 4, "i": 12, "j": 5, "k": 1}


def value(index: Index, at: dict[str, int]) -> int:
    result = index.constant
    for atom, factor in index.terms:
        result += factor * (value(atom.of, at) // atom.by if isinstance(atom, Floor) else at[atom])
    return result


def made(generator: random.Random, depth: int) -> Index:
    index = total(
        *((variable(name), generator.choice([0, 1, 2, 3, 6, 12])) for name in RANGES),
        (number(generator.randrange(9)), 1),
    )
    if depth == 0:
        return index
    inner = made(generator, depth - 1)
    by = generator.choice([2, 3, 4, 6, 12])
    cut = quotient(inner, by, RANGES) if generator.random() < 0.5 else remainder(inner, by, RANGES)
    return total((index, 1), (cut, generator.choice([1, 2, 6])))


def test_quotients_and_remainders_have_their_value() -> None:
    generator = random.Random(5)
    for _ in range(300):
        index, by = made(generator, 2), generator.choice([1, 2, 3, 4, 6, 12, 24])
        at = {name: generator.randrange(count) for name, count in RANGES.items()}
        assert value(quotient(index, by, RANGES), at) == value(index, at) // by
        assert value(remainder(index, by, RANGES), at) == value(index, at) % by
        low, high = bounds(index, RANGES)
        assert low is not None
        assert high is not None
        assert low <= value(index, at) <= high


def test_substitution_is_simultaneous() -> None:
    index = total((variable("i"), 5), (quotient(total((variable("j"), 1), (variable("i"), 3)), 4, {}), 1))
    swapped = substitute(index, {"i": variable("j"), "j": variable("i")}, {})
    for i in range(7):
        for j in range(7):
            assert value(swapped, {"i": i, "j": j}) == value(index, {"i": j, "j": i})


def test_a_dimension_that_is_cut_and_joined_is_itself() -> None:
    i = variable("i")
    assert total((quotient(i, 4, RANGES), 4), (remainder(i, 4, RANGES), 1)) == i
    # Slices of 12 cut into rows of 4: the row is 3r and what is in the slice.
    place = total((variable("r"), 12), (i, 1))
    assert quotient(place, 4, RANGES) == total((variable("r"), 3), (quotient(i, 4, RANGES), 1))
    assert remainder(place, 4, RANGES) == remainder(i, 4, RANGES)


def test_equality_of_other_forms_is_decided() -> None:
    solver = Solver()
    twice = quotient(quotient(total((variable("i"), 5), (variable("j"), 3)), 2, RANGES), 3, RANGES)
    once = quotient(total((variable("i"), 5), (variable("j"), 3)), 6, RANGES)
    assert equal(twice, once, RANGES, solver)
    halves = total(
        (quotient(total((variable("i"), 3), (variable("j"), 1)), 2, RANGES), 2),
        (remainder(total((variable("i"), 1), (variable("j"), 1)), 2, RANGES), 1),
    )
    assert equal(halves, total((variable("i"), 3), (variable("j"), 1)), RANGES, solver)
    assert solver.asked == 1
    assert not equal(halves, total((variable("i"), 3), (variable("j"), 2)), RANGES, solver)


@pytest.mark.parametrize(("other", "same"), [(0, True), (1, False)])
def test_a_variable_with_one_value_is_0(other: int, same: bool) -> None:
    assert equal(variable("k"), number(other), RANGES, Solver()) is same


def test_an_open_dimension_has_no_end() -> None:
    ranges: dict[str, int | None] = {"n": None}
    assert bounds(variable("n"), ranges) == (0, None)
    assert not equal(quotient(variable("n"), 8, ranges), number(0), ranges, Solver())
    assert equal(remainder(total((variable("n"), 8), (number(3), 1)), 8, ranges), number(3), ranges, Solver())
