"""The witness of ops: each distinct op of a captured model alone, ours beside eager.

Steps
    distinct   the ops of the exported program, apart from what PyTorch computes once at capture (:mod:`distinct_ops`);
    alone      each is captured and lowered as a model of its own, and interpreted (:mod:`raised_alone`), or beside
               others that share nothing with it, which costs less (:mod:`raised_together`);
    cases      drawn values, other extents of open dims, special values (:mod:`op_cases`);
    verdict    by the judge of single ops (:mod:`lowerkit.parity.judge`); kept on disk (:mod:`verdicts`).

It sees what decompositions, raising and canonical passes do to an op. It does not see kernels: those have a witness of
their own (:mod:`kernels`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias, TypeVar

import msgspec
import torch
from torch.export import ExportedProgram

from lowerkit.capture.torch_export.eager import quiet
from lowerkit.errors import LowerkitError, RuntimeFault
from lowerkit.parity.judge.eager_errors import known_reason
from lowerkit.parity.judge.operators import difference
from lowerkit.parity.witness.distinct_op import DistinctOp, LoneOp, results_of
from lowerkit.parity.witness.distinct_ops import Occurrence, occurrences
from lowerkit.parity.witness.op_cases import OpCase, cases_of, drawn
from lowerkit.parity.witness.raised_alone import LoweredOp, raised_op
from lowerkit.parity.witness.raised_together import Example, raised_together
from lowerkit.parity.witness.verdicts import Difference, VerdictCache, Witnessed
from lowerkit.program.dtypes import to_torch, torch_name_of

Op = TypeVar("Op", bound=LoneOp)
Lowering: TypeAlias = Callable[[Op, Sequence[torch.Tensor]], LoweredOp]
"""Lowers an op alone, given values at the sizes of its example; raises a LowerkitError where it cannot."""


def witness_ops(
    exported: ExportedProgram, cache: VerdictCache | None, on_progress: Callable[[str], None] | None = None
) -> list[Witnessed]:
    """Returns a verdict for each distinct op of a program, in its order.

    Args:
        exported: the program as it was captured.
        cache: where verdicts are looked up and kept; None: everything is run.
        on_progress: called with the name of the op that runs.
    """
    return witness_each(occurrences(exported), cache, lowering_of_torch, on_progress)


def witness_each(
    standing: Sequence[Occurrence[Op]],
    cache: VerdictCache | None,
    lowering: Callable[[Sequence[Op]], Lowering[Op]],
    on_progress: Callable[[str], None] | None = None,
) -> list[Witnessed]:
    """Returns a verdict for each distinct op, in order.

    Args:
        standing: the ops and where they stand.
        cache: where verdicts are looked up and kept; None: everything is run.
        lowering: given the ops that are run, returns what lowers one.
        on_progress: called with the name of the op that runs.
    """
    verdicts = {each.op.key: cache.find(each.op.key) for each in standing if each.op} if cache is not None else {}
    new = {each.op.key: each.op for each in standing if each.op and verdicts.get(each.op.key) is None}
    lower = lowering(list(new.values()))
    found: list[Witnessed] = []
    for each in standing:
        if on_progress is not None:
            on_progress(f"witness of {each.name}")
        if each.op is None:
            found.append(Witnessed(each.name, "", "left out", reason=each.reason, places=each.places))
            continue
        verdict = verdicts.get(each.op.key)
        if verdict is None:
            verdict = witness(each.op, lower)
            if cache is not None:
                cache.keep(each.op.key, verdict)
        found.append(msgspec.structs.replace(verdict, places=each.places))
    return found


def lowering_of_torch(ops: Sequence[DistinctOp]) -> Lowering[DistinctOp]:
    """Returns what lowers one of ``ops``: all that can be are captured together."""
    together = _raised_together(ops)
    return lambda op, tensors: together.get(op.key) or raised_op(op, tensors)


def _raised_together(ops: Sequence[DistinctOp]) -> dict[str, LoweredOp]:
    with quiet(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn_for = [(op, drawn(op)) for op in ops]
        return raised_together([Example(op, tensors) for op, tensors in drawn_for if tensors is not None])


def witness(op: Op, lower: Lowering[Op]) -> Witnessed:
    """Runs one op alone on all of its cases.

    Args:
        op: the op.
        lower: lowers it alone, given values at the sizes of its example; raises a LowerkitError where it cannot.
    """
    operands = op.text
    with quiet(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = drawn(op)
        if example is None:
            return Witnessed(op.name, operands, "left out", reason="eager takes none of the values that were tried")
        if not _is_determined(op, example):
            return Witnessed(op.name, operands, "left out", reason="eager gives other values at each call")
        try:
            raised = lower(op, example)
        except LowerkitError as error:
            details = f": {error.details[0]}" if error.details else ""
            return Witnessed(op.name, operands, "refused", reason=f"{error.code}: {error.message}{details}")
        counts: Counter[str] = Counter()
        differences: dict[str, Difference] = {}
        known = ""
        for case in cases_of(op, example, raised.signature):
            text = _difference(op, raised, case)
            if text is None:
                continue
            counts[case.kind] += 1
            reason = known_reason(_cell_name(op, case)) if text else None
            if reason is not None:
                known = known or reason
            elif text:
                differences.setdefault(case.kind, Difference(case.text, text))
    verdict = "differs" if differences else "known" if known else "same"
    return Witnessed(op.name, operands, verdict, dict(counts), list(differences.values()), known)


def _cell_name(op: LoneOp, case: OpCase) -> str:
    """The name by which the list of eager's errors knows a case: ``add.Tensor[f32]/one nan``."""
    dtype = torch_name_of(op.operands[0].dtype) if op.operands else ""
    return f"{op.name.partition('.')[2] or f'onnx::{op.name}'}[{dtype}]/{case.text.lower()}"


def _is_determined(op: LoneOp, example: Sequence[torch.Tensor]) -> bool:
    first, second = (results_of(op.call([tensor.clone() for tensor in example])) for _ in range(2))
    return all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(first, second, strict=True))


def _difference(op: LoneOp, raised: LoweredOp, case: OpCase) -> str | None:
    """Returns what differs, empty where nothing does; None where there is nothing to compare."""
    tensors = [to_torch(array.copy()) for array in case.inputs]
    expected: list[torch.Tensor] | None = None
    refusal = ""
    try:
        expected = results_of(op.call(tensors))
    except Exception as error:  # torch raises what it likes
        refusal = next(iter(str(error).splitlines()), "")
    try:
        raised.takes(case.inputs)
    except RuntimeFault:
        return None if expected is None or case.kind == "extents" else "ours takes no such shapes"
    try:
        ours = raised.run(case.inputs)
    except LowerkitError as error:
        return None if expected is None else f"eager computes it, ours refuses: {error.message}"
    except Exception as error:  # numpy's: a kernel would read beyond its tensors, whatever eager says
        return f"ours fails: {type(error).__name__}: {error}"
    if expected is None:
        # Of special values eager says more than an index check can: only extents must be refused.
        return f"eager refuses it ({refusal}), ours computes" if case.kind == "extents" and not _of_values(op) else None
    exact = cache(partial(_exact, op, tensors, len(expected)))
    other = cache(partial(_second, op, tensors, len(expected)))
    for place, (value, one) in enumerate(zip(ours, expected, strict=True)):
        found, precise = to_torch(value), partial(_one_of, exact, place)
        compared = partial(difference, op.name, tensors, found, ties=case.has_ties, spread=op.spread)
        wrong = compared(one, precise)
        second = other()[place] if wrong else None
        if wrong and (second is None or compared(second, precise)):
            return wrong
    return ""


def _of_values(op: LoneOp) -> bool:
    """Whether an op reads integers, which eager may refuse for their values: drawn ones need not fit other extents."""
    return any(not operand.dtype.is_floating_point and operand.dtype != torch.bool for operand in op.operands)


def _one_of(values: Callable[[], Sequence[torch.Tensor | None]], place: int) -> torch.Tensor | None:
    return values()[place]


def _second(op: LoneOp, tensors: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor | None]:
    try:
        found = op.second_opinion(tensors)
    except Exception:  # what has no opinion of these values
        found = None
    return found if found is not None and len(found) == count else [None] * count


def _exact(op: LoneOp, tensors: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor | None]:
    wide = [tensor.to(torch.float64) if tensor.is_floating_point() else tensor for tensor in tensors]
    try:
        found = results_of(op.call(wide))
    except Exception:  # torch raises what it likes
        return [None] * count
    return found if len(found) == count else [None] * count
