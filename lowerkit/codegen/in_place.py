"""Which values may be changed where they lie: a state that is updated, a temporary that nobody reads again.

Vocabulary
    update       an ``lk.scatter`` of an operand, alone or as the only op of a region, or the insertion of a slice into
                 one, which is all that a region gives: its result is the operand, partly changed. It may stand in a
                 function that an accelerator runs.
    incarnation  a value that a state takes on its way from ``lk.state_read`` through updates to ``lk.state_write``. All
                 of them may live in the memory of the state, so that writing one token into a cache moves one token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lowerkit.codegen.memory import VIEW_OPS
from lowerkit.mlir import ir


def incarnations(
    read: ir.Operation, following: Sequence[ir.Operation], functions: Mapping[str, ir.Block]
) -> set[ir.Value]:
    """Returns the results of updates that lead from ``read`` to the only write of its state; empty without such a path.

    Args:
        read: an ``lk.state_read``.
        following: the ops after it, in order.
        functions: the bodies of functions that are called, by name.
    """
    symbol = ir.StringAttr(read.attributes["symbol"]).value
    writes = [op for op in following if op.name == "lk.state_write" and _symbol(op) == symbol]
    if len(writes) != 1:
        return set()
    callees = [ir.StringAttr(op.attributes["callee"]).value for op in following if op.name == "lk.call"]
    found: set[ir.Value] = set()
    value = writes[0].operands[0]
    while value != read.results[0]:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return set()
        operation = owner.operation
        operand = updated_operand(operation)
        if operand is None and operation.name == "lk.call":
            callee = ir.StringAttr(operation.attributes["callee"]).value
            number = next(number for number, result in enumerate(operation.results) if result == value)
            # The values of a function that is called twice are not those of one state.
            operand = _through(functions[callee], number, found) if callees.count(callee) == 1 else None
        if operand is None:
            return set()
        found.add(value)
        value = operation.operands[operand]
    return found


def updated_operand(op: ir.Operation) -> int | None:
    """Returns the number of the operand that an update changes; None for any other op."""
    if op.name == "lk.scatter":
        return 0
    if op.name != "lk.region":
        return None
    block = op.regions[0].blocks[0]
    inserted = insertion(block)
    if inserted is not None:
        return inserted[1]
    body = [inner.operation for inner in block.operations]
    if len(body) != 2 or body[0].name != "lk.scatter" or list(body[1].operands) != [body[0].results[0]]:
        return None
    table = body[0].operands[0]
    return ir.BlockArgument(table).arg_number if isinstance(table.owner, ir.Block) else None


def insertion(block: ir.Block) -> tuple[ir.Operation, int] | None:
    """Returns the insertion that a block makes in place, and the number of the argument that it changes.

    None where the block gives something else, or reads the argument beside: what is inserted may not be made of it.
    """
    returned = list(list(block.operations)[-1].operation.operands)
    if len(returned) != 1 or isinstance(returned[0].owner, ir.Block):
        return None
    op = returned[0].owner.operation
    if op.name != "tensor.insert_slice":
        return None
    table = op.operands[1]
    if not isinstance(table.owner, ir.Block) or len(list(table.uses)) != 1 or len(list(returned[0].uses)) != 1:
        return None
    return op, ir.BlockArgument(table).arg_number


def _through(function: ir.Block, result: int, found: set[ir.Value]) -> int | None:
    """Returns the argument of a function that updates make a result of; adds their results to ``found``."""
    value = list(function.operations)[-1].operation.operands[result]
    while not isinstance(value.owner, ir.Block):
        operation = value.owner.operation
        operand = updated_operand(operation)
        if operand is None:
            return None
        found.add(value)
        value = operation.operands[operand]
    return ir.BlockArgument(value).arg_number


def is_read_later(values: Collection[ir.Value], following: Sequence[ir.Operation]) -> bool:
    """Whether an op of ``following`` reads one of ``values``, or a view of one that is made there."""
    views = set(values)
    for op in following:
        if any(operand in views for operand in _read(op)):
            if op.name not in VIEW_OPS:
                return True
            views.update(op.results)
    return False


def _read(op: ir.Operation) -> list[ir.Value]:
    """What an op reads: until a collective is done, its ranks read the operand of its start."""
    if op.name == "lk.collective_done":
        return [*op.operands, *op.operands[0].owner.operation.operands]
    return list(op.operands)


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["symbol"]).value
