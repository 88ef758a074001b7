"""States as steps: where each lives, and its reads and writes.

A read is the state itself where nobody needs another value of it, else a copy. A state lives with the accelerator whose
steps alone read and write it, and crosses to the host only when somebody asks for it; one that both use lives with the
host, from where it is copied as any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.codegen.in_place import incarnations
from lowerkit.codegen.memory import VIEW_OPS, overwritten_in_use
from lowerkit.codegen.step_draft import Source, byte_size
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import HOST, Buffer


def state_homes(operations: Sequence[ir.Operation], memory_of: Callable[[ir.Operation], str]) -> dict[str, str]:
    """Returns the memory of each state that lives elsewhere than with the host, by name.

    Args:
        operations: of ``@main``.
        memory_of: the memory that an ``lk.call`` runs in.
    """
    users: dict[str, set[str]] = {}
    reads: dict[ir.Value, str] = {}  # values that are a state as it was read, and views of them
    makers: dict[ir.Value, str] = {}  # where the others are made, by default by the host
    for op in operations:
        read = [reads[operand] for operand in op.operands if operand in reads]
        if op.name == "lk.state_read":
            symbol = _symbol(op)
            users.setdefault(symbol, set())
            reads[op.results[0]] = symbol
        elif op.name == "lk.state_write":
            symbol, value = _symbol(op), op.operands[0]
            if reads.get(value) != symbol:
                users.setdefault(symbol, set()).add(makers.get(value, HOST))
                for other in read:  # from one state to another: both where anybody can read them
                    users[other].add(HOST)
        elif op.name in VIEW_OPS:
            for known in (reads, makers):
                if op.operands[0] in known:
                    known[op.results[0]] = known[op.operands[0]]
        elif op.name != "tensor.dim":
            memory = memory_of(op) if op.name == "lk.call" else HOST
            makers.update(dict.fromkeys(op.results, memory))
            for symbol in read:
                users[symbol].add(memory)
    return {symbol: next(iter(where)) for symbol, where in users.items() if len(where) == 1 and HOST not in where}


def read_state(walker: StepWalker, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
    """Lets an ``lk.state_read`` be the state where it is not overwritten while the value is in use, else a copy."""
    symbol = _symbol(op)
    state = _buffer(walker, symbol, op)
    value = op.results[0]
    walker.incarnations |= incarnations(op, rest, walker.functions)
    if overwritten_in_use(value, symbol, rest):
        copy = walker.arena(value, walker.draft.buffers[state].memory)
        walker.draft.copy(state, copy, op)
        state = copy
    walker.places.sources[value] = Source(state)


def write_state(walker: StepWalker, op: ir.Operation) -> None:
    """Copies a value into its state, unless an update has changed it in place."""
    state = _buffer(walker, _symbol(op), op)
    source = walker.buffer(walker.places.sources[op.operands[0]])
    if source != state:
        walker.draft.copy(source, state, op)


def _buffer(walker: StepWalker, symbol: str, op: ir.Operation) -> int:
    if symbol not in walker.state_buffers:
        names = [spec.name for spec in walker.signature.states]
        if symbol not in names:
            raise CodegenError("LK5002", f"the signature has no state {symbol!r}", op=op.name)
        value = op.results[0] if len(op.results) else op.operands[0]
        size = byte_size(value.type, walker.shapes.shape(value))
        home = walker.state_homes.get(symbol, HOST)
        buffer = Buffer("state", size, index=names.index(symbol), memory=home)
        walker.state_buffers[symbol] = walker.draft.add(buffer)
    return walker.state_buffers[symbol]


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["symbol"]).value
