"""What kind of wrong a wrong value is: the patterns that the usual bugs leave.

Checked in order, the first that fits names the cause. Patterns are properties of the two arrays alone, so a cause is a
hint where to look and no proof; each says what was seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.metrics import compare

_CLOSE = 1e-3
"""Relative distance under which a pattern counts as met: far above rounding in f32, at it in bf16."""


def cause_of(actual: Array, reference: Array, *, exact: bool = False) -> str:
    """Returns a sentence on how ``actual`` differs from ``reference``, arrays of one shape.

    With ``exact``, both were computed in float64, where a small difference is no rounding.
    """
    left = np.asarray(actual).astype(np.float64)
    right = np.asarray(reference).astype(np.float64)
    if left.size == 0:
        return "no elements"
    if not compare(left, right).special_equal:
        return _special(left, right)
    wrong = _differing(left, right)
    if not wrong.any():
        small = "no element is off by more than 0.1 % of the largest"
        return (
            f"constant: {small}, but in float64 that is no rounding (an epsilon, say)"
            if exact
            else f"rounding: {small}"
        )
    for pattern in _PATTERNS:
        found = pattern(left, right, wrong)
        if found is not None:
            return found
    return f"values: {int(wrong.sum())} of {wrong.size} elements are off by up to {np.abs(left - right).max():.3g}"


def _differing(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore"):
        bound = _CLOSE * max(float(np.nanmax(np.abs(np.where(np.isfinite(right), right, 0)))), 1e-30)
        return np.asarray(np.abs(left - right) > bound)


def _special(left: Array, right: Array) -> str:
    ours, theirs = int((~np.isfinite(left)).sum()), int((~np.isfinite(right)).sum())
    return f"range: {ours} elements are NaN or infinite, {theirs} in the reference (overflow, or 0 divided by 0)"


def _close(left: Array, right: Array) -> bool:
    return left.shape == right.shape and not _differing(left, right).any()


def _sign(left: Array, right: Array, wrong: Array) -> str | None:
    if _close(left, -right):
        return "sign: every element is the negative (operands of a subtraction swapped)"
    nonzero = (left != 0) & (right != 0)
    if nonzero.all() and _close(left, 1 / right) and left.size > 1:
        return "reciprocal: every element is 1 / the reference (operands of a division swapped)"
    return None


def _factor(left: Array, right: Array, wrong: Array) -> str | None:
    signal = float((right * right).sum())
    factor = float((left * right).sum()) / signal if signal else 0.0
    if factor and left.size > 1 and _close(left, factor * right):
        return f"scale: every element is {factor:.6g} times the reference (a scale missing or applied twice)"
    return None


def _shift(left: Array, right: Array, wrong: Array) -> str | None:
    for axis in range(left.ndim):
        size = left.shape[axis]
        if size < 3:
            continue
        for step in (1, -1):
            inner = slice(1, size - 1)
            moved = np.roll(right, step, axis)
            if _close(np.take(left, range(size)[inner], axis), np.take(moved, range(size)[inner], axis)):
                return f"position: shifted by {step} along axis {axis} (off by one in padding, a slice or an index)"
    return None


def _order(left: Array, right: Array, wrong: Array) -> str | None:
    if left.size > 1 and _close(np.sort(left.ravel()), np.sort(right.ravel())):
        return "layout: the same elements at other places (a wrong permutation, axis or layout)"
    return None


def _term(left: Array, right: Array, wrong: Array) -> str | None:
    difference = left - right
    if left.ndim and _close(left, right + difference.ravel()[0]) and difference.size > 1:
        return f"addition: every element is off by {difference.ravel()[0]:.4g}"
    for axis in range(left.ndim):
        others = tuple(other for other in range(left.ndim) if other != axis)
        if not others or left.size == left.shape[axis]:
            continue
        if _close(left, right + difference.mean(axis=others, keepdims=True)):
            return (
                f"addition: each index of axis {axis} is off by a constant of its own (a bias missing or added twice)"
            )
    return None


def _edge(left: Array, right: Array, wrong: Array) -> str | None:
    for axis in range(left.ndim):
        others = tuple(other for other in range(left.ndim) if other != axis)
        along = np.flatnonzero(wrong.any(axis=others))
        size = left.shape[axis]
        if 0 < along.size < size:
            first, last = int(along[0]), int(along[-1])
            contiguous = last - first + 1 == along.size
            if contiguous and last == size - 1 and along.size <= size // 2:
                return f"edge: only the last {along.size} of {size} along axis {axis} differ (the tail of a loop)"
            if set(along.tolist()) <= {0, size - 1}:
                return f"edge: only the border along axis {axis} differs (padding)"
    return None


def _zeros(left: Array, right: Array, wrong: Array) -> str | None:
    if not left[wrong].any():
        return f"missing: {int(wrong.sum())} of {wrong.size} elements are zero"
    return None


_PATTERNS: tuple[Callable[[Array, Array, Array], str | None], ...] = (
    _sign,
    _factor,
    _term,
    _zeros,
    _shift,
    _edge,
    _order,
)
