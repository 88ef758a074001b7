"""Reads and writes of states as steps: the state itself where nobody needs another value of it, else copies."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.in_place import incarnations
from lowerkit.codegen.memory import overwritten_in_use
from lowerkit.codegen.step_draft import Source, byte_size
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import HOST, Buffer


def read_state(walker: StepWalker, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
    """Lets an ``lk.state_read`` be the state where it is not overwritten while the value is in use, else a copy."""
    symbol = ir.StringAttr(op.attributes["symbol"]).value
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
    state = _buffer(walker, ir.StringAttr(op.attributes["symbol"]).value, op)
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
