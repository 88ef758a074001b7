"""What is said where a proof does not go on: the op, its line, what it was given, and what that was before."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.errors import VerifyError
from lowerkit.spmd.certificate.graph import Graph
from lowerkit.spmd.certificate.relations import Relation, explain
from lowerkit.spmd.certificate.values import Known

_HINT = "the split of this op is wrong, or more than a proof can follow: give its module the choice replicate"


def unproved_op(
    after: Graph, before: Graph, number: int, held: Sequence[Relation], known: Known, axis: str, reason: str
) -> VerifyError:
    """Returns the error of an op of which no lemma holds.

    Args:
        after, before: the programs.
        number: of the op after.
        held: the relations of the values in front of it.
        known: the program before.
        axis: that is split.
        reason: why.
    """
    op = after.ops[number]
    kinds = [after.value_types[operand] for operand in op.operands]
    lines = explain([held[operand] for operand in op.operands], kinds, known.classes)
    details = [f"operand {place}: {line}" for place, line in enumerate(lines)]
    if 0 <= op.number < len(before.ops):
        there = [known.values[operand] for operand in before.ops[op.number].operands]
        details += [f"before, operand {place}: {_named(known, value)}" for place, value in enumerate(there)]
    message = f"{after.describe(number)} cannot be proved for the ranks along {axis!r}: {reason}"
    return VerifyError("LK3006", message, details=details, hint=_HINT)


def other_result(place: int, held: Relation, kind: str, wanted: int, known: Known, axis: str) -> VerifyError:
    """Returns the error of a result that is not that of one device; ``wanted`` is its class before."""
    return VerifyError(
        "LK3006",
        f"result {place} of the ranks along {axis!r} is not that of one device",
        details=[*explain([held], [kind], known.classes), f"before it is {_named(known, wanted)}"],
    )


def _named(known: Known, value: int) -> str:
    return f"%{value}, {known.classes.names[value]}"
