"""Small changes of a program of ranks, one at a time: what a proof must refuse wherever the outcome changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import main_block, nested_operations, operations


@dataclass(frozen=True)
class Mutant:
    """A changed program.

    Attributes:
        kind: of the change.
        text: what was changed.
        module: a copy with the change, which verifies.
    """

    kind: str
    text: str
    module: ir.Module


def mutants(module: ir.Module, most: int) -> Iterator[Mutant]:
    """Yields up to ``most`` changes of each kind; the module is not changed."""
    generator = random.Random(3)
    for kind, find in _KINDS.items():
        changes = find(module)
        generator.shuffle(changes)
        made = 0
        for number, choice in changes:
            copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)
            with copy.context:
                text = _apply(kind, _all_ops(copy)[number], choice)
            if text and _verifies(copy):
                yield Mutant(kind, text, copy)
                made += 1
            if made == most:
                break


Change = tuple[int, int]


def _all_ops(module: ir.Module) -> list[ir.Operation]:
    """Returns the ops of ``@main`` and of what is inside them."""
    return [each for op in operations(main_block(module)) for each in (op, *nested_operations(op))]


def _verifies(module: ir.Module) -> bool:
    try:
        return bool(module.operation.verify())
    except ir.MLIRError:
        return False


def _operands(module: ir.Module) -> list[Change]:
    """Each operand of an op of ``@main`` with each other value of its type that is there by then."""
    ops = _all_ops(module)
    block = main_block(module)
    values: list[ir.Value] = list(block.arguments)
    found: list[Change] = []
    for number, op in enumerate(ops):
        if op.block != block:
            continue
        for place, operand in enumerate(op.operands):
            for other, value in enumerate(values):
                if value.type == operand.type and value != operand:
                    found.append((number, place * 10_000 + other))
        values += list(op.results)
    return found


def _named(*names: str) -> Callable[[ir.Module], list[Change]]:
    def find(module: ir.Module) -> list[Change]:
        return [(number, 0) for number, op in enumerate(_all_ops(module)) if op.name in names]

    return find


def _numbers(module: ir.Module) -> list[Change]:
    """Each number among the attributes of an op, one more and one less."""
    found: list[Change] = []
    for number, op in enumerate(_all_ops(module)):
        for place, name in enumerate(_number_names(op)):
            count = len(_integers(op.attributes[name]))
            found += [(number, place * 1000 + entry * 2 + sign) for entry in range(count) for sign in (0, 1)]
    return found


def _number_names(op: ir.Operation) -> list[str]:
    names = sorted(each if isinstance(each, str) else each.name for each in op.attributes)
    left_out = ("lk.id", "operandSegmentSizes", "resultSegmentSizes", "ranks", "root", "peer")
    return [name for name in names if name not in left_out and _integers(op.attributes[name])]


def _integers(attribute: ir.Attribute) -> list[int]:
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.IntegerAttr) and not isinstance(attribute, ir.BoolAttr):
        return [attribute.value]
    return []


def _symbols(module: ir.Module) -> list[Change]:
    ops = _all_ops(module)
    weights = [number for number, op in enumerate(ops) if op.name == "lk.weight"]
    return [
        (one, other)
        for one in weights
        for other in weights
        if ops[one].results[0].type == ops[other].results[0].type
        and ops[one].attributes["symbol"] != ops[other].attributes["symbol"]
    ]


def _apply(kind: str, op: ir.Operation, choice: int) -> str:
    """Changes an op; returns what was changed, ``""`` where it cannot be."""
    match kind:
        case "operand":
            place, other = divmod(choice, 10_000)
            block = op.block
            values: list[ir.Value] = list(block.arguments)
            for each in operations(block):
                values += list(each.results)
            op.operands[place] = values[other]
            return f"{op.name}: operand {place} is value {other}"
        case "dropped":
            start = op.operands[0].owner.operation
            if start.operands[0].type != op.results[0].type:
                return ""
            op.results[0].replace_all_uses_with(start.operands[0])
            op.erase()
            start.erase()
            return "a collective is left out"
        case "reduction" | "axis":
            other = {"reduction": "max", "axis": "dp"}[kind]
            if kind == "reduction" and ir.StringAttr(op.attributes["kind"]).value == "all_gather":
                return ""
            op.attributes[kind] = ir.StringAttr.get(other)
            return f"{kind} {other}"
        case "number":
            place, rest = divmod(choice, 1000)
            entry, sign = divmod(rest, 2)
            name = _number_names(op)[place]
            values_ = _integers(op.attributes[name])
            values_[entry] += 1 if sign else -1
            attribute = op.attributes[name]
            if isinstance(attribute, ir.DenseI64ArrayAttr):
                op.attributes[name] = ir.DenseI64ArrayAttr.get(values_)
            else:
                op.attributes[name] = ir.IntegerAttr.get(attribute.type, values_[0])
            return f"{op.name}: {name} is {values_}"
        case "symbol":
            other_op = _all_ops(_module_of(op))[choice]
            op.attributes["symbol"] = other_op.attributes["symbol"]
            return f"a weight is {other_op.attributes['symbol']}"
        case "permutation":
            order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            order[0], order[1] = order[1], order[0]
            op.attributes["permutation"] = ir.DenseI64ArrayAttr.get(order)
            return f"permutation {order}"
        case "swapped":
            if len(op.operands) < 2 or op.operands[0].type != op.operands[1].type:
                return ""
            one, other_ = op.operands[0], op.operands[1]
            op.operands[0], op.operands[1] = other_, one
            return f"{op.name}: operands are swapped"
        case _:
            raise AssertionError(kind)


def _module_of(op: ir.Operation) -> ir.Module:
    while op.name != "func.func":
        op = op.parent.operation
    return ir.Module.parse(str(op.parent.operation), op.context)


_KINDS: dict[str, Callable[[ir.Module], list[Change]]] = {
    "operand": _operands,
    "dropped": _named("lk.collective_done"),
    "reduction": _named("lk.collective_start"),
    "axis": _named("lk.collective_start"),
    "number": _numbers,
    "symbol": _symbols,
    "permutation": _named("linalg.transpose"),
    "swapped": _named("arith.subf", "arith.mulf", "lk.matmul", "arith.select", "arith.subi", "arith.cmpi"),
}
