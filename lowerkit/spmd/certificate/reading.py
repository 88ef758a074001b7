"""From a module to plain data (:mod:`lowerkit.spmd.certificate.graph`), and the numbers that tell copies of an op.

The numbers are attributes ``lk.id`` of the ops of a function: a pass that writes an op again on the operands of one
rank copies it with its attributes. A proof takes a number for a hint, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from lowerkit.codegen.step_place import portable_location
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import captured_values, main_block, operations
from lowerkit.passes.source_location import describe
from lowerkit.spmd.certificate.graph import OPEN, Form, Graph, Op, type_text

NUMBER = "lk.id"
_LARGEST_TEXT = 400
_STRUCTURED = frozenset({"operandSegmentSizes", "resultSegmentSizes", "indexing_maps", "iterator_types", NUMBER})


def number_ops(module: ir.Module) -> None:
    """Gives each op of each function its number."""
    with module.context:
        kind = ir.IntegerType.get_signless(64)
        for _, block in _functions(module):
            for number, op in enumerate(operations(block)):
                op.attributes[NUMBER] = ir.IntegerAttr.get(kind, number)


def strip_numbers(module: ir.Module) -> None:
    """Takes the numbers off again."""
    for _, block in _functions(module):
        for op in operations(block):
            if NUMBER in op.attributes:
                del op.attributes[NUMBER]


def read_graph(module: ir.Module) -> Graph:
    """Returns ``@main`` as plain data, with the functions that are bodies of branches and loops."""
    main = main_block(module)
    others = {name: _Reader().read(block, {}) for name, block in _functions(module) if block != main}
    return _Reader().read(main, others)


def _functions(module: ir.Module) -> Iterator[tuple[str, ir.Block]]:
    for op in (each.operation for each in module.body.operations):
        if op.name == "func.func":
            yield ir.StringAttr(op.attributes["sym_name"]).value, op.regions[0].blocks[0]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _Table:
    """Things, each once, and their numbers."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[Hashable, int] = {}

    def number(self, item: Any, key: Hashable | None = None) -> int:
        key = item if key is None else key
        if key not in self._known:
            self._known[key] = len(self.items)
            self.items.append(item)
        return self._known[key]


class _Reader:
    def __init__(self) -> None:
        self.types, self.forms, self.places = _Table(), _Table(), _Table()
        self.values: dict[ir.Value, int] = {}

    def read(self, block: ir.Block, functions: dict[str, Graph]) -> Graph:
        arguments = [self._value(argument) for argument in block.arguments]
        *ops, last = operations(block)
        made = [self._op(op) for op in ops]
        returned = [self.values[operand] for operand in last.operands]
        return Graph(self.types.items, self.forms.items, self.places.items, arguments, made, returned, functions)

    def _value(self, value: ir.Value) -> int:
        self.values[value] = len(self.values)
        return self.types.number(_type(value.type))

    def _op(self, op: ir.Operation) -> Op:
        captured = captured_values(op)
        operands = [self.values[value] for value in (*op.operands, *captured)]
        form = _form(op, captured)
        number = ir.IntegerAttr(op.attributes[NUMBER]).value if NUMBER in op.attributes else -1
        place = self.places.number(_place(op))
        return Op(
            self.forms.number(form, msgspec.json.encode(form, order="sorted")),
            operands,
            [self._value(result) for result in op.results],
            place,
            number,
        )


def _place(op: ir.Operation) -> str:
    """Returns where an op comes from, the same on every machine."""
    found = describe(op)
    return str(replace(found, file=portable_location(f"{found.file}:0").removesuffix(":0")))


def _type(kind: ir.Type) -> str:
    if not isinstance(kind, ir.RankedTensorType):
        return str(kind)
    sizes = [OPEN if kind.is_dynamic_dim(axis) else kind.get_dim_size(axis) for axis in range(kind.rank)]
    return type_text(str(kind.element_type), sizes)


def _form(op: ir.Operation, captured: list[ir.Value]) -> Form:
    maps: list[list[list[int]] | None] = []
    loops = ""
    if "indexing_maps" in op.attributes:
        maps = [_map(ir.AffineMapAttr(each)) for each in ir.ArrayAttr(op.attributes["indexing_maps"])]
        kinds = ir.ArrayAttr(op.attributes["iterator_types"])
        loops = "".join("p" if "parallel" in str(each) else "r" for each in kinds)
    body = None
    if len(op.regions) and len(op.regions[0].blocks):
        scope = {value: -1 - number for number, value in enumerate(captured)}
        body = [item for region in op.regions for item in _body(region, scope, [0])]
    return Form(op.name, _attributes(op), maps, loops, body, len(captured))


def _body(region: ir.Region, outside: dict[ir.Value, int], counter: list[int]) -> list[list[Any]]:
    assert len(region.blocks) <= 1, "canonical ops have bodies of one block"
    scope = dict(outside)

    def define(value: ir.Value) -> None:
        scope[value] = counter[0]
        counter[0] += 1

    made: list[list[Any]] = []
    for block in region.blocks:
        for argument in block.arguments:
            define(argument)
        for op in operations(block):
            read = [scope[operand] for operand in op.operands]
            inner = [_body(each, scope, counter) for each in op.regions]
            for result in op.results:
                define(result)
            made.append([op.name, _attributes(op), read, [_type(result.type) for result in op.results], inner])
    return made


def _attributes(op: ir.Operation) -> dict[str, Any]:
    names = [each if isinstance(each, str) else each.name for each in op.attributes]
    found = {name: _plain(op.attributes[name]) for name in sorted(names) if name not in _STRUCTURED}
    return {name: value for name, value in found.items() if not str(value).endswith("<none>")}


def _plain(attribute: ir.Attribute) -> Any:
    if isinstance(attribute, ir.BoolAttr):
        return attribute.value
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.IntegerAttr) and isinstance(attribute.type, ir.IntegerType | ir.IndexType):
        return attribute.value
    if isinstance(attribute, ir.ArrayAttr):
        return [_plain(each) for each in attribute]
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return {"splat": str(attribute.get_splat_value())}
    text = str(attribute)
    return f"mlir:{text}" if len(text) <= _LARGEST_TEXT else f"mlir:sha256:{_digest(text)}"


def _map(attribute: ir.AffineMapAttr) -> list[list[int]] | None:
    """Returns for each dimension of an operand its constant, then loop and factor in turn; None of other maps."""
    found: list[list[int]] = []
    for expression in attribute.value.results:
        sums = _affine(expression)
        if sums is None:
            return None
        constant, factors = sums
        found.append([constant, *(number for loop in sorted(factors) for number in (loop, factors[loop]))])
    return found


def _affine(expression: ir.AffineExpr) -> tuple[int, dict[int, int]] | None:
    if isinstance(expression, ir.AffineDimExpr):
        return 0, {expression.position: 1}
    if isinstance(expression, ir.AffineConstantExpr):
        return expression.value, {}
    if isinstance(expression, ir.AffineAddExpr):
        left, right = _affine(expression.lhs), _affine(expression.rhs)
        if left is None or right is None:
            return None
        factors = {loop: left[1].get(loop, 0) + right[1].get(loop, 0) for loop in left[1] | right[1]}
        return left[0] + right[0], factors
    if isinstance(expression, ir.AffineMulExpr):
        left, right = _affine(expression.lhs), _affine(expression.rhs)
        if left is None or right is None or (left[1] and right[1]):
            return None
        (constant, factors), scale = (left, right[0]) if left[1] else (right, left[0])
        return constant * scale, {loop: factor * scale for loop, factor in factors.items()}
    return None
