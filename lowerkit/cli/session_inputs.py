"""Reads `--input` values for an artifact that is there already: names, dtypes and shapes come from its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import InputError, UsageError
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.expressions import to_text
from lowerkit.runtimes.manifest import Signature

_NUMPY_NAMES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "i1": "bool", "i8": "int8", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i16": "int16", "i32": "int32", "i64": "int64",
}  # fmt: skip

RANDOM_INTEGERS_BELOW = 16
"""Small enough for any vocabulary, as at compile time."""


def read_inputs(signature: Signature, texts: Sequence[str], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns input name -> array for ``NAME=@FILE.npy`` and ``NAME:SHAPE:DTYPE`` (random values).

    Raises:
        UsageError: LK1004 for what cannot be parsed, LK1003 for names that are missing or unknown: all at once.
        InputError: LK1001, a file cannot be read.
    """
    known = {spec.name for spec in signature.inputs}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    problems: list[str] = []
    generator = np.random.default_rng(seed)
    for text in texts:
        name, array = _read(text, generator)
        if name not in known:
            problems.append(f"the model has no input {name!r}")
        arrays[name] = array
    problems += [
        f"input {spec.name!r} ({spec.dtype}, {'x'.join(map(to_text, spec.shape)) or 'scalar'}) is missing"
        for spec in signature.inputs
        if spec.name not in arrays
    ]
    if problems:
        expected = " ".join(f"--input {spec.name}=@{spec.name}.npy" for spec in signature.inputs)
        raise UsageError("LK1003", "the inputs do not match the model", details=problems, hint=f"write {expected}")
    return arrays


def _read(text: str, generator: np.random.Generator) -> tuple[str, np.ndarray[Any, Any]]:
    if "=@" in text:
        name, _, file = text.partition("=@")
        try:
            return name, np.load(Path(file), allow_pickle=False)
        except OSError as error:
            raise InputError(
                "LK1001", f"{file} cannot be read: {error.strerror or error}", hint="check the path"
            ) from error
        except ValueError as error:
            raise InputError(
                "LK1001", f"{file} is not a .npy file that can be read", hint="write it with numpy.save"
            ) from error
    parts = text.rsplit(":", 2)
    try:
        name, shape_text, dtype = parts
        shape = [int(extent) for extent in shape_text.split("x") if extent]
    except ValueError:
        raise UsageError(
            "LK1004", f"--input {text!r} cannot be parsed", hint="write NAME=@FILE.npy or NAME:1x3x224x224:f32"
        ) from None
    if dtype == "bf16":
        import ml_dtypes

        return name, generator.standard_normal(shape).astype(ml_dtypes.bfloat16)
    if dtype not in _NUMPY_NAMES:
        raise UsageError("LK1004", f"unknown element type {dtype!r}", hint="use " + ", ".join([*_NUMPY_NAMES, "bf16"]))
    if dtype.startswith("f"):
        return name, generator.standard_normal(shape).astype(_NUMPY_NAMES[dtype])
    return name, generator.integers(0, 2 if dtype == "i1" else RANDOM_INTEGERS_BELOW, shape).astype(_NUMPY_NAMES[dtype])


def read_states(signature: Signature, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Returns state name -> array for each state that has a file in ``folder``; none where there is no folder.

    Raises:
        InputError: LK1001, a file cannot be read.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for spec in signature.states:
        path = _state_file(folder, spec.name)
        if not path.exists():
            continue
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError("LK1001", f"{path} cannot be read as .npy: {error}") from error
        wanted = numpy_dtype(spec.dtype)
        raw = array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize  # .npy has no name for bfloat16
        arrays[spec.name] = array.view(wanted) if raw else array
    return arrays


def write_states(states: Mapping[str, np.ndarray[Any, Any]], folder: Path) -> None:
    """Writes each state to ``NAME.npy`` in ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in states.items():
        np.save(_state_file(folder, name), value)


def _state_file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '_')}.npy"
