"""Inputs of special values: NaN, infinities, -0.0, denormals, the largest and smallest numbers, integer extremes, ...

Each case changes the example inputs in one way: all values of a kind of input, or one value in the middle of each, or
one row. A case of a kind that no input has does not come up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from lowerkit.parity.symbolic_sizes import inputs_at, sizes_of, text_of

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import Signature

Array = np.ndarray[Any, Any]

_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})


@dataclass(frozen=True)
class SpecialInputs:
    """One case: what it is, and the inputs."""

    name: str
    inputs: list[Array]


def special_inputs(signature: Signature, example: Sequence[Array]) -> Iterator[SpecialInputs]:
    """Yields the cases of a model.

    Args:
        signature: of the model.
        example: its example inputs; they are not changed.
    """
    floats = [place for place, spec in enumerate(signature.inputs) if spec.dtype in _FLOATS]
    integers = [place for place, spec in enumerate(signature.inputs) if spec.dtype[0] in "iu" and spec.dtype != "i1"]
    flags = [place for place, spec in enumerate(signature.inputs) if spec.dtype == "i1"]
    for name, value in _float_values():
        yield from _cases(name, value, floats, example)
    for name, numbers in (("mixed", _mixed), ("denormals", _denormals)):
        if floats:
            yield SpecialInputs(
                name, [numbers(array) if place in floats else array for place, array in enumerate(example)]
            )
    for name, extreme in (("the smallest integer", "min"), ("the largest integer", "max"), ("-1", "-1"), ("0", "0")):
        yield from _cases(name, lambda kind, extreme=extreme: _integer(kind, extreme), integers, example)
    for name, flag in (("False", False), ("True", True)):
        yield from _cases(name, lambda _kind, flag=flag: flag, flags, example)
    empty = [dim for dim in signature.dims if dim.minimum == 0]
    for dim in empty:
        sizes = {**sizes_of(signature, example), dim.name: 0}
        yield SpecialInputs(f"empty: {text_of(sizes)}", inputs_at(signature, sizes, example))


def _cases(
    name: str, value: Callable[[np.dtype[Any]], Any], places: Sequence[int], example: Sequence[Array]
) -> Iterator[SpecialInputs]:
    """One element of each input, one row of each, and all elements of each input by itself."""
    forms = ((f"one {name}", _one), (f"a row of {name}", _row))
    for text, change in forms:
        changed = list(example)
        for place in places:
            changed[place] = change(example[place], value(example[place].dtype))
        if any(changed[place] is not example[place] for place in places):
            yield SpecialInputs(text, changed)
    for place in places:
        changed = list(example)
        changed[place] = np.full_like(example[place], value(example[place].dtype))
        if example[place].size:
            yield SpecialInputs(f"input {place} all {name}", changed)


def _one(array: Array, value: Any) -> Array:
    if array.size == 0:
        return array
    changed = array.copy()
    changed.reshape(-1)[array.size // 2] = value
    return changed


def _row(array: Array, value: Any) -> Array:
    """Sets the last row: of an attention mask, all that one query may look at."""
    if array.ndim < 2 or array.size == 0:
        return array
    changed = array.copy()
    changed.reshape(-1, array.shape[-1])[-1] = value
    return changed


def _float_values() -> Iterator[tuple[str, Callable[[np.dtype[Any]], Any]]]:
    yield "NaN", lambda _kind: np.nan
    yield "Inf", lambda _kind: np.inf
    yield "-Inf", lambda _kind: -np.inf
    yield "-0.0", lambda _kind: -0.0
    yield "the largest", lambda kind: ml_dtypes.finfo(kind).max
    yield "the smallest", lambda kind: ml_dtypes.finfo(kind).min
    yield "the smallest normal", lambda kind: ml_dtypes.finfo(kind).smallest_normal
    yield "the smallest denormal", lambda kind: ml_dtypes.finfo(kind).smallest_subnormal


def _mixed(array: Array) -> Array:
    """Every special value beside ordinary ones: each seventh element, in turn."""
    changed = array.copy()
    flat = changed.reshape(-1)
    values = [value(array.dtype) for _, value in _float_values()]
    for number, position in enumerate(range(0, flat.size, 7)):
        flat[position] = values[number % len(values)]
    return changed


def _denormals(array: Array) -> Array:
    """The example scaled down into the denormals."""
    scale = float(ml_dtypes.finfo(array.dtype).smallest_normal) / 4
    return (array.astype(np.float64) * scale).astype(array.dtype)


def _integer(kind: np.dtype[Any], extreme: str) -> int:
    info = np.iinfo(kind)
    if extreme in ("min", "max"):
        return int(getattr(info, extreme))
    return max(int(extreme), int(info.min))
