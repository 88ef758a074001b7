"""Look-ups in a table whose rows the ranks share: each gives what it has, and zeros for the rest.

Vocabulary
    node    how an element is computed of what a rank has, a nested tuple: ``("element", base, index)`` of a value
            before, ``("integer", index)`` a number that depends on the rank, ``("constant", text)``, ``("gather",
            base, index, rows, node)`` a row of the rank's part of a table, or ``(op, predicate, nodes...)``
    x       the index that is looked up, counted from the end where it is negative: what ``lk.gather`` reads

Steps: an op without a counterpart before becomes a node. Of ``select(inside, row, 0)`` z3 shows, for each x that the
look-up before allows and each rank: inside holds just where the rank has row x, and the row that is read is that one.
Then one rank gives the row and the others zeros, and the sum of what they give is the look-up before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, cast

from lowerkit.spmd.certificate.graph import Form, element_of, shape_of
from lowerkit.spmd.certificate.indices import Floor, Index, number, substitute, total, variable
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.relations import RANK, Formula, Relation, View, element
from lowerkit.spmd.certificate.solver import Solver, load_z3
from lowerkit.spmd.certificate.values import Classes, Extent, scalar_text

Node: TypeAlias = tuple[Hashable, ...]

_PREDICATES: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]
"""Of ``arith.cmpi``, in its order; behind them the last four of unsigned numbers."""


def node_of(relation: Relation, classes: Classes) -> tuple[Node, int]:
    """Returns a value as a node, and how many dimensions it has.

    Raises:
        Unproved: it has terms, or has begun only.
    """
    if isinstance(relation, Formula):
        return relation.node, relation.rank
    if not isinstance(relation, View) or relation.terms:
        fail("its operands are terms")
    scalar = classes.scalars.get(relation.base)
    rank = len(shape_of(classes.types[relation.base]) or ())
    if scalar is not None:
        return ("constant", classes.names[scalar]), rank
    if shape_of(classes.types[relation.base]) is None:
        return ("constant", classes.names[relation.base]), 0
    return ("element", relation.base, relation.index), rank


def elementwise(
    form: Form, given: Sequence[Relation], sizes: Sequence[tuple[Extent, ...] | None], classes: Classes
) -> Formula:
    """Returns the result of an elementwise op as a formula.

    Args:
        form: of the op.
        given: its operands.
        sizes: their extents.
        classes: of the values before.

    Raises:
        Unproved: the op is not elementwise, or its operands are not of one size.
    """
    maps = form.maps
    loops: list[set[Extent]] = [set() for _ in form.loops]
    if "r" in form.loops or len(maps) + form.captured != len(given) or any(op[4] for op in form.body or []):
        fail("it has no counterpart before, and is not elementwise")
    if maps[-1] != [[0, axis, 1] for axis in range(len(loops))]:
        fail("it has no counterpart before, and writes its result in another order")
    for each, own in zip(maps, sizes, strict=False):
        for dimension, extent in zip(each or [], own or (), strict=True):
            if len(dimension) == 3 and dimension[::2] == [0, 1]:
                loops[dimension[1]].add(extent)
    if any(len(loop) != 1 for loop in loops):
        fail("it has no counterpart before, and its operands are not of one size")
    nodes: list[Node] = []
    for each, relation in zip(maps[:-1], given, strict=False):
        node, _ = node_of(relation, classes)
        nodes.append(_at(node, [_place(dimension) for dimension in each or []]))
    nodes.append(("unread",))
    captured = [node_of(relation, classes)[0] for relation in given[len(maps) :]]
    for name, attributes, read, results, _ in form.body or []:
        operands = [captured[-1 - value] if value < 0 else nodes[value] for value in read]
        if name == "linalg.yield":
            return Formula(operands[0], tuple(extent for (extent,) in loops))
        made: Node = (name, attributes.get("predicate", 0), *operands)
        if name == "arith.constant":
            made = ("constant", scalar_text(attributes["value"], results[0]))
        nodes += [made] * len(results)
    return fail("it has no counterpart before")


def _place(dimension: list[int]) -> Index:
    constant, *pairs = dimension
    terms = [(variable(f"i{loop}"), factor) for loop, factor in zip(pairs[::2], pairs[1::2], strict=True)]
    return total((number(constant), 1), *terms)


def _at(node: Node, places: list[Index]) -> Node:
    """Reads a node elsewhere: element ``places`` of it."""
    values = {f"i{axis}": place for axis, place in enumerate(places)}

    def moved(index: Index) -> Index:
        return substitute(index, values, {})

    def walk(item: Hashable) -> Hashable:
        if isinstance(item, Index):
            return moved(item)
        return tuple(map(walk, cast("tuple[Hashable, ...]", item))) if isinstance(item, tuple) else item

    return cast("Node", walk(node))


def found_rows(table: View, indices: Formula, axis: int, shape: tuple[Extent, ...]) -> Formula:
    """Returns a look-up of computed indices, along the first axis of a part of a table, as a formula.

    Raises:
        Unproved: it is along another axis, or of terms.
    """
    if axis != 0 or table.terms:
        fail("it looks up by numbers of its own, and not rows")
    inner = {f"i{later}": variable(f"i{later - 1 + indices.rank}") for later in range(1, len(shape))}
    index = tuple(substitute(each, {**inner, "i0": variable("row")}, {}) for each in table.index)
    return Formula(("gather", table.base, index, shape[0], indices.node), (*indices.extents, *shape[1:]))


def shared_look_up(formula: Formula, classes: Classes, ranks: int, solver: Solver) -> View | None:
    """Returns the look-up before of whose sum a formula gives the rank's term; None where it has not this shape.

    Raises:
        Unproved: it has the shape, and is something else.
    """
    node = formula.node
    if node[0] != "arith.select" or not _is_zero(node[4]) or _head(node[3]) != "gather":
        return None
    inside, (_, base, index, rows, place) = cast("Node", node[2]), cast("tuple[Any, ...]", node[3])
    looked_up = _elements(inside) | _elements(place)
    if len(looked_up) != 1:
        fail("it looks up by several values")
    ((ids, where),) = looked_up
    extent = (shape_of(classes.types[base]) or (0,))[0]
    result = _gather_of(base, ids, classes)
    dimensions = len(where)
    own = [number(0) if size == 1 else each for size, each in zip(formula.extents, element(formula.rank), strict=True)]
    row = number(0) if rows == 1 else variable("row")  # a part of one row is read in one place
    wanted = [total((variable(RANK), rows), (row, 1)), *own[dimensions:]]
    single = {f"i{axis}": number(0) for axis, size in enumerate(formula.extents) if size == 1}
    read, part = ([substitute(each, single, {}) for each in places] for places in (where, index))
    if result is None or read != own[:dimensions] or part != wanted or rows * ranks < extent:
        fail("the rows that it looks up are not those of a look-up before")
    width = int(element_of(classes.types[ids]).removeprefix("i"))
    _Rows(solver, width, ranks, rows, extent).show(inside, place)
    return View(result, tuple(element(formula.rank)), "sum")


def _head(node: Hashable) -> Hashable:
    return node[0] if isinstance(node, tuple) and node else None


def _is_zero(node: Hashable) -> bool:
    if _head(node) != "constant" or not isinstance(node, tuple):
        return False
    text = str(node[1]).partition(" : ")[0]
    try:
        return float(text) == 0.0
    except ValueError:
        return False


def _elements(node: Hashable) -> set[tuple[int, tuple[Index, ...]]]:
    if not isinstance(node, tuple):
        return set()
    items = cast("tuple[Any, ...]", node)
    if items[:1] == ("element",):
        return {(items[1], items[2])}
    return set().union(*map(_elements, items)) if items else set()


def _gather_of(base: int, ids: int, classes: Classes) -> int | None:
    """Returns the class that looks up rows of ``base`` by ``ids``."""
    for made, (form, operands) in classes.computed.items():
        if form.name == "lk.gather" and operands == (base, ids) and form.attributes["axis"] == 0:
            return made
    return None


class _Rows:
    """Asks z3 about the rows that a rank has, in integers; that no number leaves its width is shown as well."""

    def __init__(self, solver: Solver, width: int, ranks: int, rows: int, extent: int) -> None:
        z3 = self._z3 = load_z3()
        self._solver, self._width = solver, width
        self._x, self._r, self._rows = z3.Int("x"), z3.Int("r"), rows
        self._given = [self._x >= -extent, self._x < extent, self._r >= 0, self._r < ranks]
        self._counted = z3.If(self._x < 0, self._x + extent, self._x)
        self._numbers: list[Any] = []

    def show(self, inside: Node, place: Node) -> None:
        """Shows that ``inside`` names the rows of the rank, and ``place`` the row that is looked up.

        Raises:
            Unproved: it does not hold, or z3 cannot say.
        """
        z3 = self._z3
        held, row = self._term(inside), self._term(place)
        first = self._rows * self._r
        owns = z3.And(first <= self._counted, self._counted < first + self._rows)
        self._require("it keeps other rows than its own", held != owns)
        self._require("it reads another row than that which is looked up", z3.And(held, row != self._counted - first))
        self._require("it may read outside of its part", z3.Or(row < -self._rows, row >= self._rows))
        limit = 1 << (self._width - 1)
        for term in self._numbers:
            self._require("a number leaves its width", z3.Or(term < -limit, term >= limit))

    def _require(self, text: str, wrong: Any) -> None:
        if not self._solver.refuted([*self._given, wrong]):
            fail(text)

    def _term(self, node: Hashable) -> Any:
        z3 = self._z3
        if not isinstance(node, tuple):
            fail("it computes what a proof cannot follow")
        kind, *rest = cast("tuple[Any, ...]", node)
        if kind == "element":
            return self._x
        if kind == "integer":
            return self._index(rest[0])
        if kind == "constant":
            text = str(rest[0]).partition(" : ")[0]
            return z3.BoolVal(text == "true") if text in ("true", "false") else z3.IntVal(int(text))
        predicate, *operands = rest
        terms = [self._term(operand) for operand in operands]
        if kind == "arith.cmpi":
            if predicate >= len(_PREDICATES):
                terms = [z3.If(term < 0, term + (1 << self._width), term) for term in terms]
                predicate -= len(_PREDICATES) - 2
            return _PREDICATES[predicate](*terms)
        if kind == "arith.select":
            return z3.If(*terms)
        if kind in ("arith.andi", "arith.ori") and all(z3.is_bool(term) for term in terms):
            return (z3.And if kind == "arith.andi" else z3.Or)(*terms)
        if kind not in ("arith.addi", "arith.subi"):
            fail(f"it computes its rows by {kind}")
        made = terms[0] + terms[1] if kind == "arith.addi" else terms[0] - terms[1]
        self._numbers.append(made)
        return made

    def _index(self, index: Index) -> Any:
        if index.variables - {RANK}:
            fail("a number of the rank differs from element to element")
        result: Any = self._z3.IntVal(index.constant)
        for atom, factor in index.terms:
            value = self._index(atom.of) / atom.by if isinstance(atom, Floor) else self._r
            result = result + factor * value
        return result
