"""Which memory each state lives in: that of the accelerator whose steps alone read and write it, else the host's.

A state that stays with an accelerator crosses to the host only when somebody asks for it; one that both use lives with
the host, from where it is copied as any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.codegen.memory import VIEW_OPS
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import HOST


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


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["symbol"]).value
