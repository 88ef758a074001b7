"""Compares the value of every region with eager's value of the node that it stands for.

Vocabulary
    tap        a region's value made an output, see :mod:`lowerkit.parity.taps`.
    reference  eager's value of a node, and the same in float64 where there is one; a split has several.
    reader     what is computed from a tap next: another tap, or an output of the model.

A pass may leave a region with a value that eager never has: half of a node, or a sum taken in another order. Such a
value is far from any reference while everything computed from it agrees. It is listed as not compared. A wrong number
cannot hide there: what reads it would be wrong too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.parity.gates import GATES, Verdict, judge_op
from lowerkit.parity.metrics import compare
from lowerkit.parity.noise import Noise
from lowerkit.parity.permission import Permitted
from lowerkit.parity.report.report import Report, Row
from lowerkit.parity.taps import align

if TYPE_CHECKING:
    from lowerkit.parity.taps import Tap
    from lowerkit.runtimes.manifest import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reference:
    """Eager's value of one result of a node, and the same in float64, None where there is none."""

    eager: Array
    float64: Array | None


References = Mapping[str, Sequence[Reference]]
MeasureNoise = Callable[[Collection[str]], Mapping[str, Sequence[Noise | None]]]
MeasurePermitted = Callable[[Collection[str]], Mapping[str, Sequence[Permitted | None]]]


def credible(float64: Array | None, eager: Array) -> Array | None:
    """Returns ONNX's float64 value, or None where eager is so far from it that it is the value of another computation.

    The evaluator has bugs of its own (it trained old batch norms), and an error to a wrong value explains anything. In
    bf16 rounding alone may be as far as a wrong value is; there `onnx_float64_values` has asked a run in float32.
    """
    dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}.get(eager.dtype.name)
    if float64 is None or dtype is None or float64.shape != eager.shape:
        return None
    return float64 if dtype == "bf16" or compare(eager, float64).sqnr_db >= GATES[dtype].model_sqnr_db / 2 else None


def is_another_value(dtype: str, sqnr_db: float) -> bool:
    """Whether a value of element type ``dtype`` is too far from eager's to be the same one, computed inaccurately.

    A quarter of the gate of a model, in decibels: 25 dB (errors of 6 % of the rms) in f32, 10 dB in bf16.
    """
    return dtype in GATES and sqnr_db < min(GATES[dtype].model_sqnr_db / 4, 25.0)


def compare_taps(
    specs: Sequence[TensorSpec],
    taps: Sequence[Tap],
    ours: Sequence[Array],
    references: References,
    passed: set[int],
    report: Report,
    measure: MeasureNoise | None = None,
    inputs: str = "",
    permit: MeasurePermitted | None = None,
) -> None:
    """Adds a row for each tap to ``report``, or a line to what was skipped.

    Args:
        specs: of the outputs, the taps among them.
        taps: in program order.
        ours: the values of all outputs.
        references: by node.
        passed: places of the model's outputs that hold gate A; the taps that hold it are added.
        report: gets the rows.
        measure: measures the rounding noise of the nodes that are outside of the tolerance.
        inputs: which inputs these are, for the rows.
    """
    pairs = {tap.output: _nearest(ours[tap.output], references.get(node_of(tap), ())) for tap in taps}
    first = {
        place: judge_op(specs[place].dtype, pair[0], pair[1].eager, None)
        for place, pair in pairs.items()
        if pair is not None
    }
    doubtful = {
        node_of(tap)
        for tap in taps
        if tap.output in first and specs[tap.output].dtype in GATES and _may_be_rounding(first[tap.output])
    }
    noise = measure(doubtful) if measure is not None and doubtful else {}
    permitted = permit(doubtful) if permit is not None and doubtful else {}
    rows: list[Row] = []
    # Readers come after what they read, so they are judged first.
    for tap in reversed(taps):
        dtype = specs[tap.output].dtype
        pair = pairs[tap.output]
        if pair is None:
            report.skipped.append(f"{tap.node} ({tap.kind}): eager has no value of that name and size")
            continue
        actual, reference = pair
        verdict = first[tap.output]
        if _may_be_rounding(verdict):
            measured = noise.get(node_of(tap), [])
            places = [place for place, one in enumerate(references[node_of(tap)]) if one is reference]
            known = measured[places[0]] if measured else None
            granted = permitted.get(node_of(tap), [])
            moved = granted[places[0]] if granted else None
            verdict = judge_op(dtype, actual, reference.eager, reference.float64, known, moved)
        if verdict.passed:
            passed.add(tap.output)
        elif tap.readers and tap.readers <= passed and is_another_value(dtype, verdict.to_eager.sqnr_db):
            passed.add(tap.output)
            report.skipped.append(f"{tap.node} ({tap.kind}): no value of eager, and all that is computed of it agrees")
            continue
        rows.append(Row(tap.node, tap.kind, tap.location, dtype, actual.shape, verdict, inputs))
    report.ops.extend(reversed(rows))


def _may_be_rounding(verdict: Verdict) -> bool:
    return not verdict.passed and verdict.to_eager.special_equal


def node_of(tap: Tap) -> str:
    """Returns the name of the node that a tap stands for."""
    return tap.node.partition("@")[0]


def _nearest(value: Array, references: Sequence[Reference]) -> tuple[Array, Reference] | None:
    """Returns the reference that ``value`` is nearest to, with ``value`` in its shape; None where none has its size."""
    pairs = [(aligned, reference) for reference in references if (aligned := align(value, reference.eager)) is not None]
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    return max(pairs, key=lambda pair: compare(pair[0], pair[1].eager).sqnr_db)
