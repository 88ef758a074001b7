"""Values of the program before, each known by how it is computed: equal computations are one value.

Vocabulary
    class     of values: an argument, a weight, or an op on classes. What all ranks compute alike is numbered in the
              same table, so that an op that they run on whole operands needs no counterpart to be recognized.
    extent    a number, or what an open dimension is: ``("dim", class, axis)``, or ``("is", class)`` of an index value
    version   effects keep their order: what they read counts how many writes there were

Two ops are one computation where form, types and operand classes are equal. Ops with effects never are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from lowerkit.spmd.certificate.graph import OPEN, Form, Graph, shape_of
from lowerkit.spmd.certificate.indices import Index
from lowerkit.spmd.certificate.loop_nests.nest import Nest, Place, Shapes
from lowerkit.spmd.certificate.loop_nests.table import nest_of
from lowerkit.spmd.certificate.loop_nests.views import DYNAMIC

Extent: TypeAlias = int | tuple[str, int] | tuple[str, int, int]

EFFECTS = frozenset({"lk.state_read", "lk.state_write", "lk.check_indices", "lk.call", "cf.assert"})
"""Ops that keep their order."""


@dataclass
class Classes:
    """The table of classes.

    Attributes:
        extents: of each class, None of a scalar.
        types: of each class.
        integers: what a class is where it is a constant integer.
        scalars: of a tensor all of whose elements are one scalar, its class.
        blank: tensors of which nothing but the shape is said.
        computed: the form and the operands of each class that an op computes.
        names: of each class, for people.
    """

    extents: list[tuple[Extent, ...] | None] = field(default_factory=list[tuple[Extent, ...] | None])
    types: list[str] = field(default_factory=list[str])
    integers: dict[int, int] = field(default_factory=dict[int, int])
    scalars: dict[int, int] = field(default_factory=dict[int, int])
    blank: set[int] = field(default_factory=set[int])
    names: list[str] = field(default_factory=list[str])
    computed: dict[int, tuple[Form, tuple[int, ...]]] = field(default_factory=dict[int, tuple[Form, tuple[int, ...]]])
    _known: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _dimensions: dict[int, Extent] = field(default_factory=dict[int, Extent])

    def argument(self, number: int, kind: str) -> int:
        """Returns the class of an argument."""
        return self._class(("argument", number), kind, f"argument {number}")

    def weight(self, symbol: str, kind: str) -> int:
        """Returns the class of a weight."""
        return self._class(("weight", symbol, kind), kind, f"weight {symbol}")

    def scalar(self, text: str, kind: str) -> int:
        """Returns the class of a scalar constant, ``1.0 : f32``."""
        number = self._class(("scalar", text), kind, text)
        value = text.partition(" : ")[0]
        if value.lstrip("-").isdigit():
            self.integers[number] = int(value)
        return number

    def computes(self, form: Form, operands: Sequence[int], kinds: Sequence[str], version: int, name: str) -> list[int]:
        """Returns the classes of the results of an op.

        Args:
            form: of the op.
            operands: their classes.
            kinds: the types of the results.
            version: of what it reads, where it has effects; 0.
            name: for people.
        """
        if form.name == "lk.weight":
            return [self.weight(form.attributes["symbol"], kinds[0])]
        if form.name == "arith.constant":
            return [self._constant(form, kinds[0], name)]
        if form.name == "tensor.dim" and (known := self._dimension(operands, name)) is not None:
            return [known]
        if form.name == "arith.select" and self.names[operands[0]] in ("true", "false"):
            return [operands[1 if self.names[operands[0]] == "true" else 2]]
        key = (msgspec.json.encode(form), self._read(form, operands, kinds), tuple(kinds), version)
        found: list[int] = []
        for number, kind in enumerate(kinds):
            fresh = len(self.types)
            made = self._class((*key, number), kind, name)
            if made == fresh:
                self._learn(made, form, operands, kinds, number)
            found.append(made)
        return found

    def extent_class(self, extent: Extent, name: str) -> int:
        """Returns the class of the index value that an extent is."""
        if isinstance(extent, int):
            return self.scalar(f"{extent} : index", "index")
        return extent[1] if extent[0] == "is" else self._class(("extent", extent), "index", name)

    def extent_of(self, index: int) -> Extent:
        """Returns the extent that an index value is."""
        return self.integers.get(index, self._dimensions.get(index, ("is", index)))

    def number_of(self, base: int) -> float:
        """Returns the constant that all elements of a class are; NaN where they are none, or there is no such class."""
        scalar = self.scalars.get(base, base)
        try:
            return float(self.names[scalar].partition(" : ")[0]) if scalar >= 0 else float("nan")
        except ValueError:
            return float("nan")

    def _class(self, key: Hashable, kind: str, name: str) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.types)
            self.types.append(kind)
            self.names.append(name)
            shape = shape_of(kind)
            own = None
            if shape is not None:
                own = tuple(("dim", number, axis) if size == OPEN else size for axis, size in enumerate(shape))
            self.extents.append(own)
        return number

    def _constant(self, form: Form, kind: str, name: str) -> int:
        value = form.attributes["value"]
        if isinstance(value, dict):
            text = value["splat"]
            number = self._class(("splat", text, kind), kind, name)
            self.scalars[number] = self.scalar(text, text.rpartition(" : ")[2] if " : " in text else "i1")
            return number
        if shape_of(kind) is not None:
            return self._class(("constant", str(value), kind), kind, name)
        return self.scalar(scalar_text(value, kind), kind)

    def _dimension(self, operands: Sequence[int], name: str) -> int | None:
        source, axis = operands[0], self.integers.get(operands[1])
        extents = self.extents[source]
        if axis is None or extents is None or axis >= len(extents):
            return None
        made = self.extent_class(extents[axis], name)
        if not isinstance(extents[axis], int):
            self._dimensions.setdefault(made, extents[axis])
        return made

    def _read(self, form: Form, operands: Sequence[int], kinds: Sequence[str]) -> tuple[int, ...]:
        """Returns the operands of an op; -1 for a destination that gives its shape alone, that of the loops."""
        if not self.blank & set(operands):
            return tuple(operands)
        nest = self._nest(form, operands, kinds)
        if nest is None:
            return tuple(operands)
        sizes = self.loop_extents(nest.operands, [self.extents[operand] for operand in operands], nest.unread)
        shaped = [
            number in nest.unread and self.agrees(nest.operands[number], self.extents[operand], sizes)
            for number, operand in enumerate(operands)
        ]
        return tuple(-1 if only else operand for only, operand in zip(shaped, operands, strict=True))

    def _nest(self, form: Form, operands: Sequence[int], kinds: Sequence[str]) -> Nest | None:
        shapes = Shapes(
            tuple(shape_of(self.types[operand]) or () for operand in operands),
            tuple(shape_of(kind) or () for kind in kinds),
        )
        return nest_of(form, shapes, shapes)

    @staticmethod
    def loop_extents(
        places: Sequence[Place], extents: Sequence[tuple[Extent, ...] | None], unread: frozenset[int]
    ) -> dict[Index, set[Extent]]:
        """Returns what is known of the extents of the loops that index a dimension alone, by what is read."""
        found: dict[Index, set[Extent]] = {}
        for number, (place, own) in enumerate(zip(places, extents, strict=True)):
            for index, extent in zip(place, own or (), strict=True) if number not in unread else ():
                found.setdefault(index, set()).add(extent)
        return found

    @staticmethod
    def agrees(place: Place, extents: tuple[Extent, ...] | None, loops: dict[Index, set[Extent]]) -> bool:
        """Whether a destination has the open extents of the loops that index it."""
        pairs = zip(place, extents or (), strict=True)
        return all(isinstance(extent, int) or extent in loops.get(index, ()) for index, extent in pairs)

    def _learn(self, made: int, form: Form, operands: Sequence[int], kinds: Sequence[str], number: int) -> None:
        self.computed[made] = (form, tuple(operands))
        if form.name == "tensor.empty":
            self.blank.add(made)
        if form.name == "linalg.fill":
            self.scalars[made] = operands[0]
        shape = shape_of(kinds[number])
        if shape is not None and OPEN in shape:
            self.extents[made] = self._open_extents(made, form, operands, kinds, number)

    def _open_extents(
        self, made: int, form: Form, operands: Sequence[int], kinds: Sequence[str], number: int
    ) -> tuple[Extent, ...]:
        shape = shape_of(kinds[number]) or ()
        if form.name == "tensor.empty":
            sizes = iter(operands)
            return tuple(self.extent_of(next(sizes)) if size == OPEN else size for size in shape)
        found: list[Extent] = [("dim", made, axis) if size == OPEN else size for axis, size in enumerate(shape)]
        nest = self._nest(form, operands, kinds)
        known: dict[Index, Extent] = {}
        for place, operand in zip(nest.operands, operands, strict=True) if nest is not None else ():
            known.update(dict(zip(place, self.extents[operand] or (), strict=True)))
        for axis, size in enumerate(shape):
            if size == OPEN and nest is not None and nest.results[number][axis] in known:
                found[axis] = known[nest.results[number][axis]]
            elif size == OPEN:
                found[axis] = self._moved_extent(form, operands, shape, axis) or found[axis]
        return tuple(found)

    def _moved_extent(self, form: Form, operands: Sequence[int], shape: Sequence[int], axis: int) -> Extent | None:
        """Returns an open extent of the result of an op that moves elements, out of the extents of its operands."""
        source: tuple[Extent, ...] = self.extents[operands[0]] or ()
        given = sum(size == OPEN for size in shape[:axis])
        match form.name:
            case "tensor.expand_shape":
                return self.extent_of(operands[1 + given])
            case "tensor.extract_slice" if len(source) == len(shape):
                offsets = sum(offset == DYNAMIC for offset in form.attributes["static_offsets"])
                return self.extent_of(operands[1 + offsets + given])
            case "tensor.collapse_shape":
                group: list[int] = form.attributes["reassociation"][axis]
                return self._combined("arith.muli", [source[each] for each in group if source[each] != 1])
            case "tensor.concat" if form.attributes["dim"] == axis:
                joined = [self.extents[each] or source for each in operands]
                return self._combined("arith.addi", [extents[axis] for extents in joined])
            case _:
                return None

    def _combined(self, name: str, extents: Sequence[Extent]) -> Extent:
        """Returns the sum or the product of extents, as a program would compute it."""
        first, *others = (self.extent_class(extent, name) for extent in extents)
        for other in others:
            (first,) = self.computes(Form(name), (first, other), ["index"], 0, name)
        return self.extent_of(first)


@dataclass
class Known:
    """The program before: its classes by value, and its effects in order."""

    classes: Classes
    values: list[int]
    effects: list[tuple[Form, tuple[int, ...]]]


def read_classes(graph: Graph) -> Known:
    """Returns the classes of a program."""
    classes = Classes()
    values = [classes.argument(number, graph.types[kind]) for number, kind in enumerate(graph.arguments)]
    effects: list[tuple[Form, tuple[int, ...]]] = []
    for number, op in enumerate(graph.ops):
        form = graph.forms[op.form]
        operands = [values[operand] for operand in op.operands]
        if form.name in EFFECTS:
            effects.append((form, tuple(operands)))
        version = len(effects) if form.name in EFFECTS else 0
        kinds = [graph.types[kind] for kind in op.results]
        values += classes.computes(form, operands, kinds, version, graph.describe(number))
    return Known(classes, values, effects)


def scalar_text(value: object, kind: str) -> str:
    """Returns a scalar constant as MLIR writes it, ``1.0 : f32``, of the value of an attribute."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} : {kind}" if isinstance(value, int) else str(value).removeprefix("mlir:")


def shapes_of(graph: Graph, number: int) -> Shapes:
    """Returns the shapes of op ``number``."""
    op = graph.ops[number]
    kinds = graph.value_types
    return Shapes(
        tuple(shape_of(kinds[operand]) or () for operand in op.operands),
        tuple(shape_of(kinds[result]) or () for result in graph.results(number)),
    )
