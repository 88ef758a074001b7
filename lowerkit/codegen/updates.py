"""Where the result of an update lies: in the memory of its operand where nobody needs the old value, else in a copy.

The steps of a run that is refused must leave states as they were, so a state is changed where it lies only where no
check of indices follows (:mod:`lowerkit.codegen.index_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.in_place import is_read_later
from lowerkit.codegen.index_checks import may_end_the_run
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.mlir import ir


def updated_buffer(
    walker: StepWalker,
    op: ir.Operation,
    target: int,
    result: ir.Value,
    rest: Sequence[ir.Operation],
    memory: str,
) -> int:
    """Returns the buffer that an update changes, which holds what its operand holds when the step begins.

    Args:
        walker: of the function with ``op``.
        op: the update: a region, or a call of a function.
        target: the number of the operand that it changes.
        result: the changed value.
        rest: the ops after ``op``, those after the call of its function included.
        memory: where it runs.
    """
    source = walker.places.buffer_of(op.operands[target], memory)
    kind = walker.draft.buffers[source].kind
    old = [value for value, known in walker.places.sources.items() if known.buffer == source]
    others = [value for number, value in enumerate(op.operands) if number != target]
    read_too = any(value in old or value == op.operands[target] for value in others)
    in_state = result in walker.incarnations and not may_end_the_run(rest, walker.functions)
    own = (kind == "arena" and source >= walker.own_buffers) or (kind == "state" and in_state)
    if own and not read_too and not is_read_later(old, rest):
        walker.places.forget_copy(source)
        return source
    copy = walker.arena(result, memory)
    walker.draft.copy(source, copy, op)
    return copy
