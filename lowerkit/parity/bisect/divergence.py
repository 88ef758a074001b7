"""The first op of a module whose inputs agree and whose value does not.

Vocabulary
    reference   a value that the computation is known to have: of a node of the captured graph in float64, or of an op
                of the module before the pass that is suspected. References are looked up by node.
    matched     an op's value is a reference of its node, as it is, permuted or reshaped; or it is that of an operand
                that is matched: views, casts and transposes move no node's value.
    twin        the reference that an op of the same name had for the same node before the pass.
    sound       an op that is matched, or all of whose readers are sound. A pass may compute in other steps than
                PyTorch, so most values between two nodes are nobody's; that everything read from them is right
                says that they are.

Ops are looked at last first, as readers decide; the first unsound one whose node has references is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerkit.dialect.reference.numeric import Array
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import Evaluation, place_of
from lowerkit.parity.metrics import compare
from lowerkit.parity.taps import align
from lowerkit.passes.rewriting import OpMap

EXACT_DB = 110.0
"""SQNR in float64 from which on two computations count as the same: constants in f32 leave about 140 dB.

In an ill-conditioned model they leave less: see :func:`exact_limit`.
"""

_SIGNIFICANT_BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_MARGIN_DB = 20.0

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


def exact_limit(dtype: str, eager_db: float | None) -> float:
    """Returns from how many decibels on two float64 computations of a model count as the same.

    Eager's own distance to float64 says how much the model amplifies one rounding of every value in ``dtype``;
    rounding in f32 is 6.02 dB a bit less. Constants alone are rounded, so they stay below that.

    Args:
        dtype: the element type that the model computes in.
        eager_db: SQNR of eager's outputs to float64; None where it is not known.
    """
    if eager_db is None or dtype not in _SIGNIFICANT_BITS:
        return EXACT_DB
    in_f32 = eager_db + 6.02 * (_SIGNIFICANT_BITS["f32"] - min(_SIGNIFICANT_BITS[dtype], _SIGNIFICANT_BITS["f32"]))
    return min(EXACT_DB, in_f32 - _MARGIN_DB)


def first_divergence(
    evaluation: Evaluation,
    references: Mapping[str, Sequence[Array]],
    outputs: Sequence[Array],
    before: Evaluation | None = None,
    limit: float = EXACT_DB,
) -> Divergence | None:
    """Returns the first unsound op; None where every op is sound.

    Args:
        evaluation: with its values.
        references: by node.
        outputs: what ``@main`` should return.
        before: the module before the pass that is suspected; its values are references too.
        limit: decibels from which on two values are the same.
    """
    known = {node: list(values) for node, values in references.items()}
    twins: dict[tuple[str, str], list[Array]] = {}
    for op, tensors in before.values.items() if before is not None else ():
        node = place_of(op).node
        if node and not op.name.startswith(_NO_COMPUTATION):
            known.setdefault(node, []).extend(tensors)
            twins.setdefault((node, op.name), []).extend(tensors)
    returned = list(evaluation.block.operations)[-1].operation
    expected = {
        number: same(actual, wanted, limit)
        for number, (actual, wanted) in enumerate(zip(evaluation.outputs, outputs, strict=True))
    }
    order = evaluation.values.items()
    calls = {str(op.attributes["callee"]): op for op, _ in order if op.name == "lk.call"}
    outer = _outer_values(evaluation, calls)
    matched = OpMap[bool]()
    for op, tensors in order:
        of_node = known.get(place_of(op).node, ())
        matched[op] = _matches(tensors, of_node, limit) or _moves(op, tensors, evaluation, outer, matched, limit)
    sound = OpMap[bool]()
    for op, _ in reversed(order):
        sound[op] = matched[op] or _readers_sound(op, returned, expected, calls, sound)
    for op, tensors in order:
        node = place_of(op).node
        if not sound[op] and node in known and not op.name.startswith(_NO_COMPUTATION):
            value = tensors[0]
            return Divergence(op, value, _nearest(value, [*twins.get((node, op.name), ())] or known[node]))
    return None


def _matches(tensors: Sequence[Array], references: Sequence[Array], limit: float) -> bool:
    return bool(references) and all(any(_is_same(tensor, other, limit) for other in references) for tensor in tensors)


def _is_same(tensor: Array, reference: Array, limit: float) -> bool:
    """Whether a tensor is a reference as it is, permuted or reshaped."""
    if tensor.size != reference.size:
        return False
    if tensor.shape == reference.shape and same(tensor, reference, limit):
        return True
    aligned = align(reference, tensor)
    return aligned is not None and same(tensor, aligned, limit)


def _moves(
    op: ir.Operation,
    tensors: Sequence[Array],
    evaluation: Evaluation,
    outer: Mapping[ir.Value, ir.Value],
    matched: OpMap[bool],
    limit: float,
) -> bool:
    """Whether every result of an op is a value that it reads and that is matched, moved or not."""
    given: list[Array] = []
    for operand in (outer.get(each, each) for each in op.operands):
        owner = operand.owner
        if isinstance(owner, ir.Block):
            if owner == evaluation.block:
                given.append(evaluation.arguments[ir.BlockArgument(operand).arg_number])
        elif matched.get(owner.operation):
            given += evaluation.values.get(owner.operation)
    return _matches(tensors, given, limit)


def _outer_values(evaluation: Evaluation, calls: Mapping[str, ir.Operation]) -> dict[ir.Value, ir.Value]:
    """What each argument of an accelerator's function is where it is called."""
    found: dict[ir.Value, ir.Value] = {}
    for function in (op.operation for op in evaluation.module.body.operations):
        call = calls.get(str(function.attributes["sym_name"])) if "sym_name" in function.attributes else None
        if call is not None:
            found.update(zip(function.regions[0].blocks[0].arguments, call.operands, strict=True))
    return found


def _nearest(value: Array, references: Sequence[Array]) -> Array | None:
    """Returns the reference nearest to ``value``, in its shape; None where none has its size."""
    fitting = [one if one.shape == value.shape else align(one, value) for one in references if one.size == value.size]
    aligned = [one for one in fitting if one is not None]
    return max(aligned, key=lambda one: compare(value, one).sqnr_db, default=None)


def _readers_sound(
    op: ir.Operation,
    returned: ir.Operation,
    expected: Mapping[int, bool],
    calls: Mapping[str, ir.Operation],
    sound: OpMap[bool],
) -> bool:
    answers = list(_answers(op, returned, expected, calls, sound))
    return bool(answers) and all(answers)


def _answers(
    op: ir.Operation,
    returned: ir.Operation,
    expected: Mapping[int, bool],
    calls: Mapping[str, ir.Operation],
    sound: OpMap[bool],
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
                if parent is not None and parent.name == "func.func":  # of an accelerator: its call gives the value
                    parent = calls.get(str(parent.attributes["sym_name"]))
                if parent is not None and parent.operation in sound:
                    yield sound[parent.operation]
            else:  # a list of tensors and the like: who reads that decides
                yield from _answers(reader, returned, expected, calls, sound)
