"""A program as plain data: what a proof reads, and a certificate holds.

Vocabulary
    value   a number: the arguments of the program come first, then the results of each op, in order
    form    all of an op but its operands and where it stands: many ops have one
    body    of a form, the ops inside: ``[name, attributes, operands, results, bodies]`` each; an operand counts the
            block's arguments and then what the body computes, -1 is the first captured value, which is an operand of
            the op itself, behind the others
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

OPEN = -1
"""An extent that is not known before the program runs."""

_TENSOR = re.compile(r"([^\[\]]+)\[([-0-9,]*)\]")

BodyOp = list[Any]


class Form(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an op is.

    Attributes:
        name: of the op.
        attributes: numbers, strings, lists of them; whatever else as MLIR writes it, behind ``mlir:``.
        maps: of a structured op, for each operand and dimension the constant, then loop and factor in turn; None
            where a map is not affine.
        loops: of a structured op, ``p`` or ``r`` for each loop: parallel, or a reduction.
        body: of a structured op, and of others with a region.
        captured: how many of the last operands are read by the body alone.
    """

    name: str
    attributes: dict[str, Any] = {}
    maps: list[list[list[int]] | None] = []
    loops: str = ""
    body: list[BodyOp] | None = None
    captured: int = 0


class Op(msgspec.Struct, frozen=True, array_like=True):
    """An op: its form, its operands and the types of its results, its place in the model, and its number before.

    Attributes:
        form, place: into the lists of the program.
        operands: values.
        results: into the list of types.
        number: that of the op of the program before which this is said to be; -1: none.
    """

    form: int
    operands: list[int]
    results: list[int]
    place: int = 0
    number: int = -1


class Graph(msgspec.Struct, frozen=True, dict=True):
    """A program.

    Attributes:
        types: ``f32[2,-1]``, or ``index``.
        forms, places: what ops refer to; a place is ``file:line (in module)``.
        arguments: their types.
        ops: in order, without the last one.
        returned: the values that the last one hands out.
        functions: the bodies of branches and loops, by name.
    """

    types: list[str]
    forms: list[Form]
    places: list[str]
    arguments: list[int]
    ops: list[Op]
    returned: list[int]
    functions: dict[str, Graph] = {}

    @cached_property
    def starts(self) -> list[int]:
        """The value that is the first result of each op; behind them the number of values."""
        found = [len(self.arguments)]
        for op in self.ops:
            found.append(found[-1] + len(op.results))
        return found

    @cached_property
    def value_types(self) -> list[str]:
        """The type of each value."""
        results = (kind for op in self.ops for kind in op.results)
        return [self.types[kind] for kind in [*self.arguments, *results]]

    def results(self, number: int) -> range:
        """Returns the values that op ``number`` computes."""
        return range(self.starts[number], self.starts[number + 1])

    def describe(self, number: int) -> str:
        """Returns the name and the place of op ``number``, for people."""
        op = self.ops[number]
        return f"{self.forms[op.form].name} at {self.places[op.place]}"

    def require_sound(self) -> None:
        """Raises where the numbers of a program that was read from a file do not refer to what is there.

        Raises:
            ValueError: with what is wrong.
        """
        count = len(self.arguments)
        _require(self.arguments, len(self.types), "types")
        for op in self.ops:
            _require([op.form], len(self.forms), "forms")
            _require([op.place], len(self.places), "places")
            _require(op.results, len(self.types), "types")
            _require(op.operands, count, "values")
            count += len(op.results)
        _require(self.returned, count, "values")
        for text in self.types:
            shape_of(text)
        for function in self.functions.values():
            function.require_sound()

    @property
    def parts(self) -> list[tuple[str, Graph]]:
        """The program itself, by the name ``""``, and each of its functions, in the order of their names."""
        return [("", self), *sorted(self.functions.items())]

    @property
    def weights(self) -> dict[str, str]:
        """The weights that the program and its functions read, with their types."""
        found: dict[str, str] = {}
        for _, part in self.parts:
            for op in part.ops:
                form = part.forms[op.form]
                if form.name == "lk.weight":
                    found[str(form.attributes["symbol"])] = part.types[op.results[0]]
        return found


def without_numbers(graph: Graph) -> Graph:
    """Returns a program whose ops are said to be none of a program before."""
    ops = [replace(op, number=-1) for op in graph.ops]
    functions = {name: without_numbers(function) for name, function in graph.functions.items()}
    return replace(graph, ops=ops, functions=functions)


def with_own_numbers(graph: Graph) -> Graph:
    """Returns a program whose ops are said to be its own: what a split leaves as it is."""
    ops = [replace(op, number=number) for number, op in enumerate(graph.ops)]
    functions = {name: with_own_numbers(function) for name, function in graph.functions.items()}
    return replace(graph, ops=ops, functions=functions)


def _require(numbers: Iterable[int], count: int, what: str) -> None:
    if any(not 0 <= number < count for number in numbers):
        raise ValueError(f"a number refers to none of {count} {what}")


def type_text(element: str, shape: Iterable[int]) -> str:
    """Returns how the type of a tensor is written."""
    return f"{element}[{','.join(map(str, shape))}]"


@lru_cache(maxsize=1 << 12)
def element_of(text: str) -> str:
    """Returns the element type of a tensor, or the type of a scalar."""
    found = _TENSOR.fullmatch(text)
    return found[1] if found else text


@lru_cache(maxsize=1 << 12)
def shape_of(text: str) -> tuple[int, ...] | None:
    """Returns the extents of a tensor; None of a scalar."""
    found = _TENSOR.fullmatch(text)
    if found is None:
        return None
    return tuple(map(int, found[2].split(","))) if found[2] else ()
