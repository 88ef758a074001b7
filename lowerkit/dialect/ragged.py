"""Operands and results of any number and any mixture of types.

A variadic field of an IRDL op is one constraint variable, and a variable is bound once: all values of the field must
have one type. Ops such as ``lk.region`` take values of any types, so they declare a fixed number of variadic fields
(``inputs_0``, ``inputs_1``, ...), and each run of neighbours of equal type fills one. The order of the values is kept;
``operandSegmentSizes`` and ``resultSegmentSizes`` state the lengths of the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from lowerkit.dialect.shapes import fail
from lowerkit.mlir import ir

OPERAND_RUNS = 32
RESULT_RUNS = 8


def ragged_fields(prefix: str, hint: Any, runs: int) -> dict[str, Any]:
    """Returns the annotations of ``runs`` variadic fields."""
    return {f"{prefix}_{index}": hint for index in range(runs)}


def fits(types: Sequence[ir.Type], runs: int = OPERAND_RUNS) -> bool:
    """Tells whether values of these types can be the operands (or results) of one ragged op."""
    return sum(1 for _ in itertools.groupby(types)) <= runs


def segment_sizes(types: Sequence[ir.Type], runs: int) -> ir.Attribute:
    """Returns the segment sizes attribute for values of these types.

    Raises:
        VerifyError: they form more runs of equal types than the op has fields for.
    """
    lengths = [sum(1 for _ in run) for _, run in itertools.groupby(types)]
    if len(lengths) > runs:
        fail(f"the values form {len(lengths)} runs of equal types, and the op has room for {runs}")
    return ir.DenseI32ArrayAttr.get(lengths + [0] * (runs - len(lengths)))


def create_ragged(
    name: str,
    operands: Sequence[ir.Value],
    result_types: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
    *,
    first: Sequence[ir.Value] = (),
    regions: int = 0,
    operand_runs: int = OPERAND_RUNS,
    result_runs: int = RESULT_RUNS,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> Any:
    """Creates a ragged op; ``result_runs`` 0 is an op without results.

    ``first`` are operands that have a field each, ahead of the ragged ones.

    Raises:
        VerifyError: there are more runs than fields.
    """
    sizes = segment_sizes([value.type for value in operands], operand_runs - len(first))
    segments: dict[str, ir.Attribute] = {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([*[1] * len(first), *ir.DenseI32ArrayAttr(sizes)])
    }
    if result_runs:
        segments["resultSegmentSizes"] = segment_sizes(result_types, result_runs)
    operation = ir.Operation.create(
        name,
        results=list(result_types),
        operands=[*first, *operands],
        attributes={**attributes, **segments},
        regions=regions,
        loc=loc,
        ip=ip,
    )
    return operation.opview
