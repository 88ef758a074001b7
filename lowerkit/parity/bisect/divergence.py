"""The first op of a module whose inputs agree and whose value does not.

Vocabulary
    reference   a value that the computation is known to have: of a node of the captured graph in float64, or of an op
                of the module before the pass that is suspected. References are looked up by node.
    matched     an op's value is a reference of its node, as it is, permuted or reshaped.
    sound       an op that is matched, or all of whose readers are sound. A pass may compute in other steps than
                PyTorch, so most values between two nodes are nobody's; that everything read from them is right
                says that they are.

Ops are looked at last first, as readers decide; the first unsound one whose node has references is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import Evaluation, place_of
from lowerkit.parity.metrics import compare
from lowerkit.parity.taps import align

EXACT_DB = 110.0
"""SQNR in float64 from which on two computations count as the same: constants in f32 leave about 140 dB."""

_NO_COMPUTATION = ("arith.constant", "tensor.empty", "torch.constant", "torch.prim", "tensor.dim", "linalg.index")


@dataclass(frozen=True)
class Divergence:
    """An op, its value, and the nearest reference (in the op's shape where it has its size, else None)."""

    op: ir.Operation
    value: Array
    reference: Array | None


def same(actual: Array, reference: Array, limit: float = EXACT_DB) -> bool:
    """Whether two arrays of one shape are the same computation: equal, or at least ``limit`` dB apart."""
    if actual.shape != reference.shape:
        return False
    metrics = compare(actual, reference)
    return metrics.special_equal and (metrics.sqnr_db >= limit or metrics.max_abs < 1e-30)


def first_divergence(
    evaluation: Evaluation, references: Mapping[str, Sequence[Array]], outputs: Sequence[Array]
) -> Divergence | None:
    """Returns the first unsound op; None where every op is sound.

    Args:
        evaluation: with its values.
        references: by node.
        outputs: what ``@main`` should return.
    """
    returned = list(evaluation.block.operations)[-1].operation
    expected = {
        number: same(actual, wanted)
        for number, (actual, wanted) in enumerate(zip(evaluation.outputs, outputs, strict=True))
    }
    order = list(evaluation.values)
    sound: dict[ir.Operation, bool] = {}
    nearest: dict[ir.Operation, Array | None] = {}
    for op in reversed(order):
        known = references.get(place_of(op).node, ())
        matched, nearest[op] = _match(evaluation.values[op], known)
        sound[op] = matched or _readers_sound(op, returned, expected, sound)
    for op in order:
        if not sound[op] and place_of(op).node in references and not op.name.startswith(_NO_COMPUTATION):
            return Divergence(op, evaluation.values[op][0], nearest[op])
    return None


def references_by_node(evaluation: Evaluation) -> dict[str, list[Array]]:
    """Returns the values of an evaluation by node, to be references of the next one."""
    found: dict[str, list[Array]] = {}
    for op, tensors in evaluation.values.items():
        if not op.name.startswith(_NO_COMPUTATION):
            found.setdefault(place_of(op).node, []).extend(tensors)
    found.pop("", None)
    return found


def _match(tensors: Sequence[Array], references: Sequence[Array]) -> tuple[bool, Array | None]:
    """Tells whether all tensors are references; returns the reference nearest to the first, in its shape."""
    nearest: Array | None = None
    matched = bool(references)
    for number, tensor in enumerate(tensors):
        best, best_db = None, -np.inf
        for reference in references:
            if tensor.size != reference.size:
                continue
            aligned = align(reference, tensor)
            if aligned is None:
                continue
            distance = compare(tensor, aligned)
            decibels = distance.sqnr_db if distance.special_equal else -np.inf
            if best is None or decibels > best_db:
                best, best_db = aligned, decibels
            if same(tensor, aligned):
                break
        matched = matched and best is not None and same(tensor, best)
        nearest = best if number == 0 else nearest
    return matched, nearest


def _readers_sound(
    op: ir.Operation, returned: ir.Operation, expected: Mapping[int, bool], sound: Mapping[ir.Operation, bool]
) -> bool:
    answers = list(_answers(op, returned, expected, sound))
    return bool(answers) and all(answers)


def _answers(
    op: ir.Operation, returned: ir.Operation, expected: Mapping[int, bool], sound: Mapping[ir.Operation, bool]
) -> Iterator[bool]:
    for result in op.results:
        for use in result.uses:
            reader = use.owner.operation
            if reader == returned:
                yield expected.get(use.operand_number, True)
            elif reader in sound:
                yield sound[reader]
            elif not len(reader.results):  # a terminator: what it yields is a value of the op around it
                parent = reader.parent
                if parent is not None and parent.operation in sound:
                    yield sound[parent.operation]
            else:  # a list of tensors and the like: who reads that decides
                yield from _answers(reader, returned, expected, sound)
