"""The texts by which a user tells inputs on the command line.

--input x:1x3x224x224:f32     random values of that shape and element type (f32 where none is given)
--input x:batchx3x224x224     a symbolic dim, by name
--input x=@x.npy              values from a file
--dynamic x:0=1..64           dim 0 of x may vary; its name is made up
--dynamic x:0=batch:1..64     the same with a name: dims of one name are equal
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import InputError, UsageError
from lowerkit.program.dtypes import NUMPY_DTYPES, name_of
from lowerkit.program.files import check_file
from lowerkit.program.weights import Array
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import Dim

_ALIASES = {
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "double": "f64",
    "bool": "i1",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
_DTYPES = "|".join([*NUMPY_DTYPES, *_ALIASES])
_EXTENT = r"(?:[0-9]+|[A-Za-wyz_][A-Za-wyz0-9_]*)"
_SHAPED = re.compile(rf"(?P<name>.+?):(?P<shape>{_EXTENT}(?:x{_EXTENT})*|scalar)?(?::(?P<dtype>{_DTYPES}))?")
_DYNAMIC = re.compile(
    r"(?P<name>.+):(?P<axis>[0-9]+)=(?:(?P<symbol>[A-Za-z_][A-Za-z0-9_]*))?:?(?:(?P<low>[0-9]+)\.\.(?P<high>[0-9]+)?)?"
)
RANDOM_INTEGERS_BELOW = 16
"""Random integer inputs are token ids more often than not, and must be below the smallest vocabulary."""

_EXAMPLES = "--input x:1x3x224x224:f32 or --input x=@x.npy"


@dataclass(frozen=True)
class InputSpec:
    """One ``--input``. Either ``file`` or ``shape`` is given."""

    name: str
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    file: Path | None = None


@dataclass(frozen=True)
class DynamicDim:
    """One ``--dynamic``: dim ``axis`` of input ``name`` varies from ``minimum`` to ``maximum``."""

    name: str
    axis: int
    symbol: str
    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Expected:
    """What a model declares of an input. ``dtype`` or ``shape`` is None where it does not say."""

    name: str
    dtype: str | None = None
    shape: tuple[Expr | None, ...] | None = None
    required: bool = True


def parse_inputs(texts: Sequence[str]) -> list[InputSpec]:
    """Parses the values of ``--input``.

    Raises:
        UsageError: LK1004, with each text that cannot be parsed or names an input twice.
    """
    specs: list[InputSpec] = []
    problems: list[str] = []
    for text in texts:
        spec = _parse_input(text)
        if spec is None:
            problems.append(f"{text!r} is neither NAME:SHAPE[:DTYPE] nor NAME=@FILE.npy")
        elif any(spec.name == other.name for other in specs):
            problems.append(f"{text!r}: input {spec.name!r} is given twice")
        else:
            specs.append(spec)
    if problems:
        raise UsageError(
            "LK1004",
            "an --input cannot be parsed"
            if len(problems) == 1
            else f"{len(problems)} --input options cannot be parsed",
            details=problems,
            hint=f"write {_EXAMPLES}; element types: {', '.join(NUMPY_DTYPES)}",
        )
    return specs


def _parse_input(text: str) -> InputSpec | None:
    name, at, file = text.partition("=@")
    if at:
        return InputSpec(name, file=Path(file)) if name and file else None
    match = _SHAPED.fullmatch(text)
    if match is None or (match["shape"] is None and match["dtype"] is None):
        return None
    if match["dtype"] is None and re.search(r":\d+(x\w+)*$", match["name"]):  # x:2x8:f99: no name ends in a shape
        return None
    shape_text = match["shape"] or ""
    if shape_text in NUMPY_DTYPES or shape_text in _ALIASES:  # `x:f32`: the shape is the model's own
        return InputSpec(match["name"], None, _ALIASES.get(shape_text, shape_text)) if not match["dtype"] else None
    extents = [] if shape_text in ("", "scalar") else shape_text.split("x")
    shape = tuple(int(extent) if extent.isdigit() else extent for extent in extents)
    if any(isinstance(extent, int) and extent > 1 << 40 for extent in shape):
        return None
    dtype = match["dtype"]
    return InputSpec(match["name"], shape, _ALIASES.get(dtype, dtype) if dtype else None)


def parse_dynamic(texts: Sequence[str]) -> list[DynamicDim]:
    """Parses the values of ``--dynamic``.

    Raises:
        UsageError: LK1004, with each text that cannot be parsed, has an empty range or repeats a dim.
    """
    dims: list[DynamicDim] = []
    problems: list[str] = []
    for text in texts:
        match = _DYNAMIC.fullmatch(text)
        if match is None:
            problems.append(f"{text!r} is not NAME:AXIS=LOW..HIGH")
            continue
        low = int(match["low"] or 1)
        high = int(match["high"]) if match["high"] else None
        stem = match["symbol"] or f"{re.sub(r'[^A-Za-z0-9_]', '_', match['name'])}_{match['axis']}"
        dim = DynamicDim(match["name"], int(match["axis"]), stem, low, high)
        if high is not None and high < low:
            problems.append(f"{text!r}: the range is empty")
        elif any((dim.name, dim.axis) == (other.name, other.axis) for other in dims):
            problems.append(f"{text!r}: dim {dim.axis} of {dim.name!r} is given twice")
        elif any(dim.symbol == other.symbol and (low, high) != (other.minimum, other.maximum) for other in dims):
            problems.append(f"{text!r}: {dim.symbol!r} has two ranges")
        else:
            dims.append(dim)
    if problems:
        raise UsageError(
            "LK1004",
            "a --dynamic cannot be parsed" if len(problems) == 1 else f"{len(problems)} --dynamic cannot be parsed",
            details=problems,
            hint="write --dynamic x:0=1..64: dim 0 of input x takes every size from 1 to 64",
        )
    return dims


def dims_of(dynamic: Sequence[DynamicDim]) -> list[Dim]:
    """Returns the named dims with their ranges, each once."""
    return list({dim.symbol: Dim(dim.symbol, dim.minimum, dim.maximum) for dim in dynamic}.values())


def example_arrays(
    expected: Sequence[Expected], specs: Sequence[InputSpec], dynamic: Sequence[DynamicDim] = (), *, seed: int = 0
) -> list[Array]:
    """Makes one array per expected input: from its file, or random (seeded) of the shape that is given or declared.

    Symbolic extents take a value inside their range.

    Raises:
        InputError: LK1003 with every missing, unknown or unfitting input; LK1001, LK1002 for a file.
    """
    by_name = {spec.name: spec for spec in specs}
    problems = [
        f"the model has no input {name!r}" for name in by_name if name not in {entry.name for entry in expected}
    ]
    problems += [
        f"--dynamic names {dim.name!r}, but the model has no such input"
        for dim in dynamic
        if dim.name not in {entry.name for entry in expected}
    ]
    ranges = {(dim.name, dim.axis): dim for dim in dynamic}
    symbols = {dim.symbol: dim for dim in dynamic}
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for entry in expected:
        spec = by_name.get(entry.name)
        try:
            if spec is not None and spec.file is not None:
                array = _load(spec.file)
            else:
                shape = spec.shape if spec is not None and spec.shape is not None else entry.shape
                if shape is None:
                    if entry.required:
                        problems.append(f"input {entry.name!r} is missing, and the file does not state its shape")
                    continue
                dtype = (spec.dtype if spec is not None else None) or entry.dtype or "f32"
                array = _random(_concrete(shape, entry, ranges, symbols), dtype, generator)
        except ValueError as error:
            problems.append(f"{entry.name!r}: {error}")
            continue
        problems += [f"{entry.name!r}: {problem}" for problem in _mismatches(array, entry)]
        arrays.append(array)
    if problems:
        raise InputError(
            "LK1003",
            f"the inputs do not match the model, which takes {', '.join(map(_text, expected)) or 'none'}",
            details=problems,
            hint=f"write one --input for each input, such as {_EXAMPLES}",
        )
    return arrays


def _concrete(
    shape: Sequence[Any], entry: Expected, ranges: dict[tuple[str, int], DynamicDim], symbols: dict[str, DynamicDim]
) -> tuple[int, ...]:
    result: list[int] = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int):
            result.append(extent)
            continue
        dim = ranges.get((entry.name, axis)) or (symbols.get(extent) if isinstance(extent, str) else None)
        low, high = (dim.minimum, dim.maximum) if dim else (1, None)
        result.append(min(max(low, 4), high if high is not None else max(low, 4)))
    return tuple(result)


def _random(shape: tuple[int, ...], dtype: str, generator: np.random.Generator) -> Array:
    if dtype == "i1":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype[0] in "iu":
        return generator.integers(0, RANDOM_INTEGERS_BELOW, shape).astype(NUMPY_DTYPES[dtype])
    return np.asarray(generator.standard_normal(shape, np.float32)).astype(NUMPY_DTYPES[dtype])


def _load(path: Path) -> Array:
    check_file(path)
    try:
        array = np.load(path, mmap_mode=None, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(
            "LK1002", f"{path} is not a .npy file that can be read", hint="write it with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise InputError("LK1002", f"{path} holds several arrays", hint="write one array with numpy.save")
    try:
        name_of(array.dtype)
    except TypeError as error:
        raise InputError("LK1003", f"{path}: {error}", hint="convert it with array.astype") from error
    return array


def _mismatches(array: Array, entry: Expected) -> list[str]:
    problems: list[str] = []
    if entry.dtype is not None and name_of(array.dtype) != entry.dtype:
        problems.append(f"it has element type {name_of(array.dtype)}, but the model takes {entry.dtype}")
    if entry.shape is not None:
        fits = len(array.shape) == len(entry.shape) and all(
            not isinstance(want, int) or want == have for want, have in zip(entry.shape, array.shape, strict=True)
        )
        if not fits:
            problems.append(f"it has shape {_shape_text(array.shape)}, but the model takes {_shape_text(entry.shape)}")
    return problems


def _shape_text(shape: Sequence[Any]) -> str:
    return "x".join("?" if extent is None else str(extent) for extent in shape) or "scalar"


def _text(entry: Expected) -> str:
    """Writes an input as ``--input`` takes it, as far as the model states it."""
    if entry.shape is None:
        return (
            f"{entry.name} (shape unknown)" if entry.dtype is None else f"{entry.name} ({entry.dtype}, shape unknown)"
        )
    return f"{entry.name}:{_shape_text(entry.shape)}:{entry.dtype or '?'}"
