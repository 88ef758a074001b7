"""The values of a fused program that code gives: regions of the host, and functions of accelerators.

Vocabulary
    unit    an op that is one computation: an ``lk.region``, an op of a function that its target compiles as a whole, or
            a collective that is done.
    given   a value that a unit computes and that ``@main`` holds.

A target by functions gives what its functions return. A target by regions launches each region by itself, so its
functions are made to return the values of all regions, with open extents where those would be of too many types.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerkit.codegen.shapes import Shape, ShapeTable, result_shapes
from lowerkit.dialect import CallOp
from lowerkit.dialect.ragged import RESULT_RUNS
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import func, ir, tensor, walk
from lowerkit.passes.function_by_function import target_of
from lowerkit.program.locations import last_part, origin_of
from lowerkit.targets.region_view import RegionView

_DATA = frozenset({"arith.constant", "lk.weight", "func.return"})
"""Ops without a computation. Equal constants of several nodes are shared, and carry the location of the first."""


@dataclass(frozen=True)
class Given:
    """A value of ``@main`` and where it is computed.

    Attributes:
        value: in ``@main``.
        computed: the same where it is computed: in ``@main``, or in the function of an accelerator.
        unit: the op that computes it.
        result: which of its results it is.
        kind: of the region, else the name of the function.
    """

    value: ir.Value
    computed: ir.Value
    unit: ir.Operation
    result: int
    kind: str


class ComputedValues:
    """What the code of a fused program computes, in program order.

    Attributes:
        given: the values.
        left_out: for each function a line that names the regions whose values a call has no room for.
    """

    def __init__(self, module: ir.Module, main: func.FuncOp) -> None:
        """Lets the functions of targets by regions return the values of their regions."""
        self.given: list[Given] = []
        self.left_out: list[str] = []
        self._calls: dict[ir.Operation, ir.Operation] = {}
        """From the ``func.return`` of a function to the call."""
        self._functions: dict[ir.Operation, ir.Operation] = {}
        """From a call to the function."""
        self._finishing: dict[str, ir.Operation] = {}
        functions = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation for op in module.body.operations
        }
        for view in list(main.entry_block.operations):
            op = view.operation
            if op.name == "lk.region":
                self._add(Given(op.results[-1], op.results[-1], op, len(op.results) - 1, _kind_of(op)))
            elif op.name == "lk.call" and target_of(functions[_callee_of(op)]):
                self._add_call(op, functions[_callee_of(op)])
            elif op.name == "lk.collective_done":
                self._add(Given(op.results[0], op.results[0], op, 0, _kind_of(op.operands[0].owner.operation)))

    def define_shapes(self, table: ShapeTable) -> None:
        """Tells ``table``, which is of ``@main``, the shapes that accelerators give; not those that depend on data."""
        for call, function in self._functions.items():
            try:
                table.define(call.results, _result_shapes(call, function, table))
            except UnsupportedError:
                continue

    def finishes(self, node: str, unit: ir.Operation) -> bool:
        """Whether no unit behind ``unit`` computes a part of a node."""
        last = self._finishing.get(node)
        return last is not None and last == unit

    def readers(self, value: ir.Value, places: Mapping[ir.Operation, int]) -> Iterator[int]:
        """Yields the places among the outputs of what is computed from ``value`` next, in whichever function.

        Args:
            value: see :attr:`Given.computed`.
            places: of the units that are outputs; all else is looked through.
        """
        for use in value.uses:
            owner = use.owner.operation
            if owner in places:
                yield places[owner]
            elif owner in self._calls:
                yield from self.readers(self._calls[owner].results[use.operand_number], places)
            elif owner.name == "func.return":
                yield use.operand_number
            elif owner in self._functions:
                argument = _block_of(self._functions[owner]).arguments[use.operand_number]
                yield from self.readers(argument, places)
            else:
                for result in owner.results:
                    yield from self.readers(result, places)

    def _add(self, given: Given) -> None:
        self.given.append(given)
        self._note(given.unit)

    def _note(self, unit: ir.Operation) -> None:
        """The unit is the last one so far of all nodes that it has a part of."""
        nodes: set[str] = set()

        def add(inner: ir.Operation) -> None:
            if inner.name not in _DATA:
                nodes.update(_nodes_of(inner.location))

        walk(unit, add)
        self._finishing.update(dict.fromkeys(nodes, unit))

    def _add_call(self, call: ir.Operation, function: ir.Operation) -> None:
        units = [op.operation for op in _block_of(function).operations if op.operation.name not in _DATA]
        regions = [op for op in units if op.name == "lk.region"]
        outer: dict[ir.Value, ir.Value] = {}
        if regions:
            call, outer = self._widened(call, function, regions)
        for unit in regions or units:
            self._note(unit)
        terminator = list(_block_of(function).operations)[-1].operation
        self._calls[terminator], self._functions[call] = call, function
        outer = outer or dict(zip(terminator.operands, call.results, strict=True))
        for unit in units:  # in program order; a call gives its results by type
            kind = _kind_of(unit) if regions else _callee_of(call)
            given = [(number, value) for number, value in enumerate(unit.results) if value in outer]
            self.given += [Given(outer[value], value, unit, number, kind) for number, value in given]

    def _widened(
        self, call: ir.Operation, function: ir.Operation, regions: list[ir.Operation]
    ) -> tuple[ir.Operation, dict[ir.Value, ir.Value]]:
        """Makes a function give the values of its regions too.

        Returns:
            the call that takes the place of ``call``, and what each value of the function is in ``@main``.
        """
        terminator = list(_block_of(function).operations)[-1].operation
        old = list(terminator.operands)
        wanted = [region.results[-1] for region in regions if region.results[-1] not in old]
        with terminator.location:
            forms = _forms(old, wanted)
        missing = [
            f"{_name_of(each)} ({_kind_of(each)})"
            for each in regions
            if each.results[-1] in wanted and each.results[-1] not in forms
        ]
        if missing:
            why = f"{_callee_of(call)} gives values of more types than a call has room for"
            self.left_out.append(f"{', '.join(missing)}: {why}")
        with terminator.location, ir.InsertionPoint(terminator):
            given = {value: _opened(value, kind) for value, kind in forms.items()}
        kinds = list(dict.fromkeys(str(value.type) for value in given.values()))
        order = sorted(given, key=lambda value: kinds.index(str(given[value].type)))
        values = [given[value] for value in order]
        types = [value.type for value in values]
        inputs = list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
        with call.context:
            with call.location, ir.InsertionPoint(call):
                results = CallOp.build(list(call.operands), _callee_of(call), types)
                outer = {value: _closed(result, value.type) for value, result in zip(order, results, strict=True)}
            with terminator.location, ir.InsertionPoint(terminator):
                func.ReturnOp(values)
            function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
        for before, value in zip(list(call.results), old, strict=True):
            before.replace_all_uses_with(outer[value])
        call.erase()
        terminator.erase()
        return results[0].owner.operation, outer


def _forms(old: Sequence[ir.Value], wanted: Sequence[ir.Value]) -> dict[ir.Value, ir.Type]:
    """Returns the type in which each value leaves a function, so that a call has room for as many as can be.

    A call gives values of eight types (:mod:`lowerkit.dialect.ragged`). Where those of the regions are more, their
    extents are left open, and where that is not enough they become vectors: then a type is an element type.
    """
    own = {value: value.type for value in old}
    room = RESULT_RUNS - len({str(kind) for kind in own.values()})
    further = [value for value in wanted if value.type not in own.values()]
    best: dict[ir.Value, ir.Type] = {}
    for form in (lambda value: value.type, _open_type, _vector_type):
        forms = {value: form(value) for value in further}
        frequent = [kind for kind, _ in Counter(map(str, forms.values())).most_common(room)]
        best = {value: kind for value, kind in forms.items() if str(kind) in frequent}
        if len(best) == len(further):
            break
    return {**own, **{value: value.type for value in wanted if value not in further}, **best}


def _open_type(value: ir.Value) -> ir.Type:
    kind = ir.RankedTensorType(value.type)
    return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * kind.rank, kind.element_type)


def _vector_type(value: ir.Value) -> ir.Type:
    """Of a static shape; what has open extents could not be brought back into its shape."""
    kind = ir.RankedTensorType(value.type)
    if not kind.has_static_shape:
        return _open_type(value)
    return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], kind.element_type)


def _opened(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """Builds a view of ``value`` of another type of :func:`_forms`."""
    kind = ir.RankedTensorType(value.type)
    rank = ir.RankedTensorType(wanted).rank
    if rank != kind.rank:
        flat = ir.RankedTensorType.get([math.prod(kind.shape)], kind.element_type)
        value = (
            tensor.collapse_shape(flat, value, [list(range(kind.rank))])
            if kind.rank
            else tensor.expand_shape(flat, value, [], [], [1])
        )
    return value if value.type == wanted else tensor.cast(wanted, value)


def _closed(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """Builds what :func:`_opened` was given, of its result."""
    kind, target = ir.RankedTensorType(value.type), ir.RankedTensorType(wanted)
    if kind.rank != target.rank:
        flat = ir.RankedTensorType.get([math.prod(target.shape)], target.element_type)
        value = tensor.cast(flat, value)
        groups = [list(range(target.rank))] if target.rank else []
        if not target.rank:
            return tensor.collapse_shape(target, value, groups)
        return tensor.expand_shape(target, value, groups, [], list(target.shape))
    return value if value.type == wanted else tensor.cast(wanted, value)


def _name_of(region: ir.Operation) -> str:
    node = origin_of(last_part(region.location)).node
    return node or _kind_of(region)


def _result_shapes(call: ir.Operation, function: ir.Operation, table: ShapeTable) -> list[Shape]:
    block = _block_of(function)
    shapes = [
        table.shape(operand) if isinstance(operand.type, ir.RankedTensorType) else (table.index(operand),)
        for operand in call.operands
    ]
    if any(op.operation.name == "lk.region" for op in block.operations):
        inner = ShapeTable(dict(zip(block.arguments, shapes, strict=True)))
        return [inner.shape(value) for value in list(block.operations)[-1].operation.operands]
    view = RegionView.from_function(function)
    weights = [tuple(operand.type.shape) for operand in view.operands if operand.is_weight]
    return result_shapes(view, [*shapes, *weights])


def _block_of(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def _callee_of(call: ir.Operation) -> str:
    return ir.StringAttr(call.attributes["callee"]).value


def _kind_of(unit: ir.Operation) -> str:
    states_it = unit.name in ("lk.region", "lk.collective_start")
    return ir.StringAttr(unit.attributes["kind"]).value if states_it else unit.name


def _nodes_of(location: ir.Location) -> set[str]:
    if isinstance(location, ir.FusedLoc):
        return set[str]().union(*(_nodes_of(part) for part in location.locations))
    return {origin_of(location).node}
