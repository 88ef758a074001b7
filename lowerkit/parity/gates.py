"""Gate A: the compiled model against the same semantics in eager. One table, no knobs.

The budget is measured, not guessed. A value passes when it is within the tolerance of eager, or when its error to
float64 is at most twice eager's own *and* perturbing eager moves it as far (:mod:`lowerkit.parity.noise`). Then the
verdict is "explained by rounding", with the figures. What a user allowed to be computed less exactly counts in the same
way, as far as it moves eager (:mod:`lowerkit.parity.permission`), and the verdict names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lowerkit.parity.metrics import Metrics, compare
from lowerkit.parity.noise import Noise, decibels
from lowerkit.parity.permission import Permitted

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Gate:
    """What one element type has to hold.

    Attributes:
        relative, absolute: element-wise tolerance, as torch.testing.assert_close applies them.
        model_sqnr_db: SQNR of a whole model's outputs, at least.
        model_cosine: cosine similarity of a whole model's outputs, at least.
        epsilon: spacing of the type at 1.0.
    """

    relative: float
    absolute: float
    model_sqnr_db: float
    model_cosine: float
    epsilon: float


GATES: dict[str, Gate] = {
    "f64": Gate(1e-7, 1e-7, 200.0, 0.999999, 2.0**-52),
    "f32": Gate(1.3e-6, 1e-5, 100.0, 0.999999, 2.0**-23),
    "f16": Gate(1e-3, 1e-5, 55.0, 0.9999, 2.0**-10),
    "bf16": Gate(1.6e-2, 1e-5, 40.0, 0.999, 2.0**-7),
}

QUANTIZED_MODEL_DB = 40.0
"""SQNR of a quantized model's outputs to the owner's evaluation of the same graph."""


UNMEASURED = 0.4
"""Share of a model's decibels below which no error is explained unless eager's sensitivity was measured."""


class Checked(Protocol):
    """Anything with a verdict."""

    @property
    def passed(self) -> bool:
        """The verdict."""
        ...


@dataclass(frozen=True)
class Verdict:
    """Whether a value passed, why, and the distances behind it.

    ``noise`` is eager's rounding, where it was measured; ``permitted`` what made it pass beyond that, where it did.
    """

    passed: bool
    reason: str
    to_eager: Metrics
    to_float64: Metrics | None
    eager_to_float64: Metrics | None
    noise: Noise | None = None
    permitted: Permitted | None = None


def judge_op(
    dtype: str,
    actual: Array,
    eager: Array,
    float64: Array | None,
    noise: Noise | None = None,
    permitted: Permitted | None = None,
) -> Verdict:
    """Judges one op's value.

    Args:
        dtype: the element type, ``f32`` and the like; types without a gate (integers, bool) must be equal.
        actual: our value. eager: eager's value. float64: the same computation in float64, where there is one.
        noise: eager's rounding noise, where it was measured; without it see :func:`explained`.
        permitted: how far what the user allowed moves eager.
    """
    to_eager = compare(actual, eager)
    if dtype not in GATES:
        equal = np.array_equal(actual, eager)
        return Verdict(equal, "equal" if equal else "integers differ", to_eager, None, None)
    if not to_eager.special_equal:
        return Verdict(False, "NaN or infinity at other positions than eager", to_eager, None, None)
    gate = GATES[dtype]
    if _is_close(actual, eager, gate):
        return Verdict(True, "within tolerance of eager", to_eager, None, None)
    if float64 is None:
        return Verdict(False, "outside the tolerance, and there is no float64 reference", to_eager, None, None)
    ours, theirs = compare(actual, float64), compare(eager, float64)
    finite = np.abs(float64[np.isfinite(float64)])
    largest = float(finite.max()) if finite.size else 0.0
    # Where eager happens to be exact there is no noise to measure: a few units in the last place remain.
    spare = (4 if gate.epsilon < GATES["f16"].epsilon else 1) * gate.epsilon * largest
    passed, used = _explained_by(gate, ours, theirs, noise, spare, permitted)
    reason = (
        f"error to float64 {ours.max_abs:.3g} (rms {ours.rms:.3g}), eager's {theirs.max_abs:.3g} ({theirs.rms:.3g})"
    )
    if noise is not None:
        reason += f"; perturbed eager moves by {noise.moved_max:.3g} ({noise.moved:.3g})"
        reason += f", allowed {noise.largest:.3g} ({noise.largest_rms:.3g})"
    if permitted is not None and (used or not passed):
        reason += f"; {'+'.join(permitted.names)} moves eager by {permitted.largest:.3g} ({permitted.rms:.3g})"
    return Verdict(passed, _because(reason, used) if passed else reason, to_eager, ours, theirs, noise, used)


def _because(reason: str, used: Permitted | None) -> str:
    beyond = "" if used is None else f" and {'+'.join(used.names)}"
    return f"explained by rounding{beyond}: {reason}"


def _explained_by(
    gate: Gate, ours: Metrics, theirs: Metrics, noise: Noise | None, spare: float, permitted: Permitted | None
) -> tuple[bool, Permitted | None]:
    """Whether an error is explained, and the permission without which it would not be."""
    if explained(gate, ours, theirs, noise, spare):
        return True, None
    if permitted is not None and explained(gate, ours, theirs, noise, spare, permitted):
        return True, permitted
    return False, None


def explained(
    gate: Gate,
    ours: Metrics,
    theirs: Metrics,
    noise: Noise | None,
    spare: float = 0.0,
    permitted: Permitted | None = None,
) -> bool:
    """Whether rounding explains an error to float64.

    Args:
        gate: of the element type.
        ours, theirs: our distance to float64, and eager's.
        noise: the measured noise. Without it the error may be twice that of the one eager run, and no explanation is
            accepted below two fifths of what the gate asks of a model: 40 dB in f32.
        spare: an error that needs no explanation.
        permitted: counts beside rounding, as many times as rounding may be eager's own.
    """
    rms, largest = (0.0, 0.0) if permitted is None else (permitted.rms, permitted.largest)
    if noise is not None:
        most_rms = noise.largest_rms + noise.allowance * rms
        most = noise.largest + noise.allowance * largest
        return ours.rms <= max(most_rms, spare) and ours.max_abs <= max(most, spare)
    within = ours.rms <= max(2 * (theirs.rms + rms), spare) and ours.max_abs <= max(
        2 * (theirs.max_abs + largest), spare
    )
    return within and (ours.max_abs <= spare or ours.sqnr_db >= UNMEASURED * gate.model_sqnr_db)


def judge_model(
    dtype: str,
    actual: Array,
    eager: Array,
    float64: Array | None = None,
    noise: Noise | None = None,
    permitted: Permitted | None = None,
) -> Verdict:
    """Judges one output of the whole model: SQNR, cosine, and the top-1 index along the last axis.

    Top-1 may differ only where eager's margin is under twice the largest error. Where SQNR or cosine to eager fall
    short, the float64 reference decides, as for an op: a deep model in bf16 is itself only tens of decibels away from
    float64, and two roundings of it need not be nearer to each other than they are to it.
    """
    metrics = compare(actual, eager)
    if dtype not in GATES:
        return judge_op(dtype, actual, eager, None)
    gate = GATES[dtype]
    if not metrics.special_equal:
        return Verdict(False, "NaN or infinity at other positions than eager", metrics, None, None)
    reason = f"SQNR {metrics.sqnr_db:.1f} dB"
    ours = theirs = used = None
    short = metrics.sqnr_db < gate.model_sqnr_db or metrics.cosine < gate.model_cosine
    if short:
        reason = (
            f"SQNR {metrics.sqnr_db:.1f} dB and cosine {metrics.cosine:.7f}, "
            f"the gate is {gate.model_sqnr_db:.0f} dB and {gate.model_cosine}"
        )
        if float64 is not None:
            ours, theirs = compare(actual, float64), compare(eager, float64)
            reason += f"; to float64 ours has {ours.sqnr_db:.1f} dB, eager {theirs.sqnr_db:.1f} dB"
        if noise is not None:
            reason += f"; perturbed eager moves to {noise.moved_db:.1f} dB, the limit is {_limit_db(noise):.1f} dB"
        if ours is None or theirs is None:
            return Verdict(False, reason, metrics, ours, theirs, noise)
        passed, used = _explained_by(gate, ours, theirs, noise, 0.0, permitted)
        if permitted is not None and (used or not passed):
            reason += f"; {'+'.join(permitted.names)} moves eager by {permitted.rms:.3g} (rms)"
        if not passed:
            return Verdict(False, reason, metrics, ours, theirs, noise)
        reason = _because(reason, used)
    if not _top1_agrees(actual, eager, metrics.max_abs):
        return Verdict(False, "top-1 differs by more than rounding explains", metrics, ours, theirs, noise)
    return Verdict(True, reason, metrics, ours, theirs, noise, used)


def _limit_db(noise: Noise) -> float:
    return decibels(noise.signal, noise.largest_rms)


def _is_close(actual: Array, expected: Array, gate: Gate) -> bool:
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        within = np.abs(left - right) <= gate.absolute + gate.relative * np.abs(right)
    return bool(np.all(within | (left == right) | (np.isnan(left) & np.isnan(right))))


def _top1_agrees(actual: Array, eager: Array, largest_error: float) -> bool:
    if eager.ndim == 0 or eager.shape[-1] < 2:
        return True
    left = actual.astype(np.float64).reshape(-1, actual.shape[-1])
    right = eager.astype(np.float64).reshape(-1, eager.shape[-1])
    chosen, expected = np.argmax(left, axis=-1), np.argmax(right, axis=-1)
    rows = np.arange(len(right))
    with np.errstate(invalid="ignore"):  # infinities of one sign: no margin, and then the indices decide
        margin = right[rows, expected] - right[rows, chosen]
    return bool(np.all((chosen == expected) | (margin <= 2 * largest_error)))


def judge_quantized(actual: Array, owner: Array, regions: Sequence[Checked]) -> Verdict:
    """Judges one output of a quantized model against the owner's own evaluation of it.

    It passes at 40 dB. A rounded tie early in a deep model moves everything behind it, so below that the regions
    decide: where each of them, on the owner's own values, is within its budget, the distance is inherited.
    """
    metrics = compare(actual, owner)
    if not metrics.special_equal:
        return Verdict(False, "NaN or infinity at other positions than eager", metrics, None, None)
    reason = f"SQNR {metrics.sqnr_db:.1f} dB"
    if metrics.sqnr_db >= QUANTIZED_MODEL_DB:
        return Verdict(True, reason, metrics, None, None)
    reason += f", the gate is {QUANTIZED_MODEL_DB:.0f} dB"
    if regions and all(region.passed for region in regions):
        return Verdict(True, f"explained by ties: every region holds alone; {reason}", metrics, None, None)
    return Verdict(False, reason, metrics, None, None)
