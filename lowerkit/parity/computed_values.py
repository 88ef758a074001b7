"""The values of a fused program that code gives: regions of the host, and functions of accelerators.

Vocabulary
    unit    an op that is one computation: an ``lk.region``, an op of a function that its target compiles as a whole, or
            a collective that is done.
    given   a value that a unit computes and that ``@main`` holds.

A target by functions gives what its functions return. A target by regions launches each region by itself, so its
functions are made to return the values of all regions, as far as a call has room for their types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lowerkit.codegen.shapes import Shape, ShapeTable, result_shapes
from lowerkit.dialect import CallOp
from lowerkit.dialect.ragged import RESULT_RUNS
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import func, ir, walk
from lowerkit.passes.function_by_function import target_of
from lowerkit.program.locations import origin_of
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
        left_out: lines on regions whose values a call has no room for.
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
        return self._finishing.get(node) == unit

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
        if regions:
            call = self._widened(call, function, regions)
        for unit in regions or units:
            self._note(unit)
        terminator = list(_block_of(function).operations)[-1].operation
        self._calls[terminator], self._functions[call] = call, function
        outer = dict(zip(terminator.operands, call.results, strict=True))
        for unit in units:  # in program order; a call gives its results by type
            kind = _kind_of(unit) if regions else _callee_of(call)
            given = [(number, value) for number, value in enumerate(unit.results) if value in outer]
            self.given += [Given(outer[value], value, unit, number, kind) for number, value in given]

    def _widened(self, call: ir.Operation, function: ir.Operation, regions: list[ir.Operation]) -> ir.Operation:
        """Returns a call that gives the values of the regions too, in the place of ``call``."""
        terminator = list(_block_of(function).operations)[-1].operation
        old = list(terminator.operands)
        wanted = [region.results[-1] for region in regions if region.results[-1] not in old]
        kinds = list(dict.fromkeys(str(value.type) for value in old))
        frequent = Counter(str(value.type) for value in wanted if str(value.type) not in kinds).most_common()
        kinds += [kind for kind, _ in frequent[: RESULT_RUNS - len(kinds)]]
        kept = [value for value in wanted if str(value.type) in kinds]
        if len(kept) < len(wanted):
            self.left_out.append(
                f"{len(wanted) - len(kept)} of {len(regions)} regions of {_callee_of(call)}: their values are of more "
                "types than a call has room for"
            )
        values = sorted([*old, *kept], key=lambda value: kinds.index(str(value.type)))
        types = [value.type for value in values]
        inputs = list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
        with call.context:
            with call.location, ir.InsertionPoint(call):
                results = CallOp.build(list(call.operands), _callee_of(call), types)
            with terminator.location, ir.InsertionPoint(terminator):
                func.ReturnOp(values)
            function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
        for before, value in zip(list(call.results), old, strict=True):
            before.replace_all_uses_with(results[values.index(value)])
        call.erase()
        terminator.erase()
        return results[0].owner.operation


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
