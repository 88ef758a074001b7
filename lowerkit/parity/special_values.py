"""Inputs of special values: NaN, infinities, -0.0, denormals, the largest and smallest numbers, integer extremes, ...

Each case changes the example inputs in one way: all values of a kind of input, or one value in the middle of each, or
one row. A case of a kind that no input has does not come up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from lowerkit.parity.symbolic_sizes import inputs_at, sizes_of, text_of

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import Signature

Array = np.ndarray[Any, Any]

Values: TypeAlias = Sequence[tuple[str, Callable[[np.dtype[Any]], Any]]]
"""Names, and the values of an element type."""

_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
_FLOAT_VALUES: Values = (
    ("NaN", lambda _kind: np.nan),
    ("Inf", lambda _kind: np.inf),
    ("-Inf", lambda _kind: -np.inf),
    ("-0.0", lambda _kind: -0.0),
    ("the largest", lambda kind: ml_dtypes.finfo(kind).max),
    ("the smallest", lambda kind: ml_dtypes.finfo(kind).min),
    ("the smallest normal", lambda kind: ml_dtypes.finfo(kind).smallest_normal),
    ("the smallest denormal", lambda kind: ml_dtypes.finfo(kind).smallest_subnormal),
)
_INTEGER_VALUES: Values = (
    ("the smallest integer", lambda kind: int(np.iinfo(kind).min)),
    ("the largest integer", lambda kind: int(np.iinfo(kind).max)),
    ("-1", lambda kind: max(-1, int(np.iinfo(kind).min))),
    ("0", lambda _kind: 0),
)
_FLAGS: Values = (("False", lambda _kind: False), ("True", lambda _kind: True))


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
    for values, places in _kinds(signature):
        for name, value in values:
            yield from _cases(name, value, places, example)
        if values is _FLOAT_VALUES:
            yield from _numbers(places, example)
    empty = [dim for dim in signature.dims if dim.minimum == 0]
    for dim in empty:
        sizes = {**sizes_of(signature, example), dim.name: 0}
        yield SpecialInputs(f"empty: {text_of(sizes)}", inputs_at(signature, sizes, example))


def special_inputs_together(signature: Signature, example: Sequence[Array]) -> Iterator[SpecialInputs]:
    """Yields few cases for large inputs, of which each costs: the values of a kind stand in rows of their own.

    Of each input in turn, every element of a row is one value, those of the next row another; then one element of a
    row. Inputs with fewer rows than values come up several times; one without rows counts as one element a row.
    """
    for values, places in _kinds(signature):
        for place in places:
            yield from _rows(values, place, example)
        if values is _FLOAT_VALUES:
            yield from _numbers(places, example)


def _rows(values: Values, place: int, example: Sequence[Array]) -> Iterator[SpecialInputs]:
    array = example[place]
    if array.size == 0:
        return
    width = array.shape[-1] if array.ndim > 1 else 1
    rows = array.size // width
    for start in range(0, len(values), min(rows, len(values))):
        turn = [values[(start + number) % len(values)] for number in range(len(values))]
        numbers = np.array([value(array.dtype) for _, value in turn], array.dtype)[np.arange(rows) % len(values)]
        whole = np.repeat(numbers, width).reshape(array.shape)
        single = array.reshape(rows, width).copy()
        some = np.arange(rows if width > 1 else min(rows, len(values)))
        single[some, some % width] = numbers[some]
        names = ", ".join(name for name, _ in turn[:rows])
        for text, changed in (("rows", whole), ("an element of each row", single.reshape(array.shape))):
            arrays = [changed if other == place else given for other, given in enumerate(example)]
            yield SpecialInputs(f"input {place}, {text}: {names}", arrays)


def _kinds(signature: Signature) -> Iterator[tuple[Values, list[int]]]:
    """The values of each kind of input, and the inputs of that kind."""
    inputs = list(enumerate(signature.inputs))
    yield _FLOAT_VALUES, [place for place, spec in inputs if spec.dtype in _FLOATS]
    yield _INTEGER_VALUES, [place for place, spec in inputs if spec.dtype[0] in "iu" and spec.dtype != "i1"]
    yield _FLAGS, [place for place, spec in inputs if spec.dtype == "i1"]


def _numbers(floats: Sequence[int], example: Sequence[Array]) -> Iterator[SpecialInputs]:
    for name, numbers in (("mixed", _mixed), ("denormals", _denormals)):
        if floats:
            arrays = [numbers(array) if place in floats else array for place, array in enumerate(example)]
            yield SpecialInputs(name, arrays)


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


def _mixed(array: Array) -> Array:
    """Every special value beside ordinary ones: each seventh element, in turn."""
    changed = array.copy()
    flat = changed.reshape(-1)
    values = [value(array.dtype) for _, value in _FLOAT_VALUES]
    flat[::7] = np.resize(np.array(values, array.dtype), flat[::7].size)
    return changed


def _denormals(array: Array) -> Array:
    """The example scaled down into the denormals."""
    scale = float(ml_dtypes.finfo(array.dtype).smallest_normal) / 4
    return (array.astype(np.float64) * scale).astype(array.dtype)
