"""`check --hard`: the outputs on special values, judged against eager.

NaN and infinities must stand where eager has them, finite values hold gate A. Three things are not a difference:

* a place at which eager itself is not sure: its perturbed runs (:mod:`lowerkit.parity.references.perturbations`) have
  NaN or an infinity there and eager does not, or the other way round: a sum that overflows in one order and not in
  another;
* a place at which ours is the value in float64 and eager's own overflowed on the way (attention scores before they
  are scaled); in a model that sums also one where either overflowed and float64 did not: products and partial sums
  overflow in one order of work and not in another. Where float64 has NaN or an infinity too, so must ours;
* a case that eager refuses, such as an index out of range: there the compiled model only has to survive. What it does
  instead (a diagnostic, or a value) is not compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.parity.gates import GATES, Verdict, judge_op
from lowerkit.parity.metrics import compare
from lowerkit.parity.noise import noise_of
from lowerkit.parity.permission import permitted_of
from lowerkit.parity.references.float64_reference import float64_reference_of, permitted_outputs, perturbed_outputs
from lowerkit.parity.report.report import Report, Row
from lowerkit.parity.special_values import SpecialInputs, special_inputs

if TYPE_CHECKING:
    from lowerkit.program.program import Program
    from lowerkit.runtimes.session import Session
    from lowerkit.spmd.simulated_session import SimulatedSession

Array = np.ndarray[Any, Any]


def compare_hard(model: Program, session: Session | SimulatedSession, report: Report) -> None:
    """Adds a row for each output of each case to ``report.hard``, or a line for a case that eager refuses.

    Args:
        model: as captured, with its example inputs.
        session: the compiled model; further outputs behind the model's are not looked at.
        report: gets the rows.
    """
    assert model.example_inputs is not None, "the caller checked"
    refused: list[str] = []
    for case in special_inputs(model.signature, model.example_inputs):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            rows = _compare(model, session, case, report.allowed)
        if rows is None:
            refused.append(case.name)
        else:
            report.hard += rows
    if refused:
        report.skipped.append(f"special values that eager refuses: {'; '.join(refused)}")


def _compare(
    model: Program, session: Session | SimulatedSession, case: SpecialInputs, allowed: Collection[str]
) -> list[Row] | None:
    assert model.eager is not None, "the caller checked"
    try:
        eager = model.eager(*case.inputs)
    except Exception:  # an index out of range and the like: models raise what they like
        return None
    session.reset()
    try:
        ours = session.run(*case.inputs)
    except LowerkitError as error:
        return [
            _failed(case, spec.name, spec.dtype, f"eager computes it, ours refuses: {error.message}")
            for spec in model.signature.outputs[:1]
        ]
    specs = [*model.signature.outputs, *model.signature.states]
    states = session.state
    values = [*ours[: len(model.signature.outputs)], *(states[spec.name] for spec in model.signature.states)]
    rows: list[Row] = []
    perturbed: list[list[Array]] | None = None
    permitted: list[list[Array]] = []
    for place, (spec, actual, expected) in enumerate(zip(specs, values, eager, strict=True)):
        if actual.shape != expected.shape:
            rows.append(_failed(case, spec.name, spec.dtype, f"shape {actual.shape}, eager's {expected.shape}"))
            continue
        verdict = judge_op(spec.dtype, actual, expected, None)
        if not verdict.passed and spec.dtype in GATES:
            if perturbed is None:
                perturbed = _perturbed(model, case.inputs)
                permitted = _permitted(model, case.inputs, allowed)
            runs, granted = ([run[place] for run in each] for each in (perturbed, permitted))
            verdict = _again(model, case, place, spec.dtype, actual, expected, eager, runs, granted, allowed)
        rows.append(Row(spec.name, "special values", "", spec.dtype, actual.shape, verdict, case.name))
    return rows


def _perturbed(model: Program, inputs: Sequence[Array]) -> list[list[Array]]:
    try:
        return perturbed_outputs(model, inputs)
    except Exception:  # eager may refuse what is no longer exactly its input
        return []


def _permitted(model: Program, inputs: Sequence[Array], allowed: Collection[str]) -> list[list[Array]]:
    try:
        return permitted_outputs(model, inputs, allowed)
    except Exception:  # as above
        return []


def _again(
    model: Program,
    case: SpecialInputs,
    place: int,
    dtype: str,
    actual: Array,
    eager: Array,
    all_eager: Sequence[Array],
    perturbed: Sequence[Array],
    permitted: Sequence[Array],
    allowed: Collection[str],
) -> Verdict:
    """Judges without the places at which eager is not sure or ours is float64's, with the measured noise.

    Eager is not sure either where what is allowed gives another kind of number: infinity times what rounds to zero.
    """
    own = _kinds(eager)
    left_out = np.zeros(eager.shape, np.bool_)
    for run in (*perturbed, *permitted):
        if run.shape == eager.shape:
            left_out |= _kinds(run) != own
    exact = float64_reference_of(model, case.inputs, all_eager, {}).values[place]
    exact = exact if exact is not None and exact.shape == eager.shape else None
    if exact is not None:
        differ = _kinds(actual) != own
        left_out |= differ & _is_exact(dtype, actual, exact)
        if differ.any() and _sums(model, case.inputs):
            left_out |= differ & np.isfinite(exact)
    ours, theirs = (np.where(left_out, np.zeros_like(array), array) for array in (actual, eager))
    verdict = judge_op(dtype, ours, theirs, None)
    if exact is not None and not verdict.passed and verdict.to_eager.special_equal:
        wide = theirs.astype(np.float64)
        exact = np.where(left_out | ~np.isfinite(wide), wide, exact)
        runs = [np.where(left_out, np.zeros_like(run), run) for run in perturbed]
        moved = permitted_of(
            sorted(allowed), theirs, [np.where(left_out, np.zeros_like(run), run) for run in permitted]
        )
        verdict = judge_op(dtype, ours, theirs, exact, noise_of(theirs, runs, exact), moved)
    if verdict.passed and left_out.any():
        text = (
            f"{verdict.reason}; {int(left_out.sum())} values in which a sum or a product overflows and float64 does not"
        )
        return replace(verdict, reason=text)
    return verdict


def _sums(model: Program, inputs: Sequence[Array]) -> bool:
    """Whether a model sums; an ONNX model is taken to."""
    if model.onnx_model is not None:
        return True
    from lowerkit.parity.references.perturbations import Reordering

    assert model.eager is not None, "the caller checked"
    with Reordering(0) as mode:
        model.eager(*inputs)
    return mode.applied


def _is_exact(dtype: str, actual: Array, exact: Array) -> Array:
    """Tells where a value is float64's: the same kind of number, and if finite within the tolerance."""
    gate, wide = GATES[dtype], actual.astype(np.float64)
    rounded = exact.astype(actual.dtype).astype(np.float64)
    near = np.abs(wide - rounded) <= gate.absolute + gate.relative * np.abs(rounded)
    return (_kinds(wide) == _kinds(rounded)) & (near | ~np.isfinite(wide))


def _kinds(array: Array) -> Array:
    """Tells each element's kind: 0 finite, 1 NaN, 2 +Inf, 3 -Inf."""
    wide = array.astype(np.float64)
    return np.where(np.isnan(wide), 1, np.where(np.isposinf(wide), 2, np.where(np.isneginf(wide), 3, 0)))


def _failed(case: SpecialInputs, name: str, dtype: str, reason: str) -> Row:
    return Row(
        name,
        "special values",
        "",
        dtype,
        (),
        Verdict(False, reason, compare(np.zeros(1), np.ones(1)), None, None),
        case.name,
    )
