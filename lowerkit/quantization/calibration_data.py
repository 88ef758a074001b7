"""Calibration data: one array for each input of the model, in an ``.npz`` file or a mapping, with samples in front."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import InputError
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.runtimes.manifest import Signature

Array = np.ndarray[Any, Any]
Sample = list[Array]


def read_calibration(path: Path) -> dict[str, Array]:
    """Reads an ``.npz`` file; nothing is unpickled.

    Raises:
        InputError: LK1001, LK1002, the file is missing or is none.
    """
    if not path.is_file():
        state = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(
            "LK1001",
            f"the calibration file {path} {state}",
            hint="write one with numpy.savez: an array for each input, samples along the first axis",
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise InputError(
            "LK1002", f"{path} is no .npz file of arrays: {error}", hint="write it with numpy.savez(path, x=samples)"
        ) from error


def samples_of(signature: Signature, arrays: Mapping[str, Array]) -> Sequence[Sample]:
    """Splits arrays into samples in the order of the model's inputs.

    An array has the shape of its input, or one dimension more: then its first runs over samples.

    Raises:
        InputError: LK1003, with every array that is missing, unknown, or of another type or shape.
    """
    problems = [
        f"there is no input {name!r}" for name in arrays if name not in {spec.name for spec in signature.inputs}
    ]
    columns: list[Array] = []
    for spec in signature.inputs:
        array = arrays.get(spec.name)
        wanted = NUMPY_DTYPES[spec.dtype]
        shape = tuple(extent for extent in spec.shape)
        if array is None:
            problems.append(f"input {spec.name!r} is missing")
        elif array.dtype != wanted:
            problems.append(f"{spec.name!r} is {array.dtype}, the model takes {wanted}")
        elif _fits(array.shape, shape):
            columns.append(array[None])
        elif array.ndim == len(shape) + 1 and _fits(array.shape[1:], shape):
            columns.append(array)
        else:
            extents = ", ".join(map(str, shape))
            samples = f"(samples, {extents})" if extents else "(samples,)"
            problems.append(f"{spec.name!r} has shape {array.shape}, the model takes ({extents}) or {samples}")
    counts = {len(column) for column in columns}
    if len(counts) > 1:
        problems.append(f"the inputs have {', '.join(map(str, sorted(counts)))} samples: they must be equally many")
    if counts == {0}:
        problems.append("there are no samples")
    if problems:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise InputError(
            "LK1003", "the calibration data does not match the model", details=problems, hint=f"its inputs are: {names}"
        )
    return [[column[index] for column in columns] for index in range(counts.pop() if counts else 0)]


def refuse_nan(signature: Signature, samples: Sequence[Sample]) -> None:
    """Makes sure that ranges can be chosen from the samples. Infinities are values that masks use.

    Raises:
        InputError: LK1003, with each input that holds a NaN, and where the first one is.
    """
    problems: list[str] = []
    for number, spec in enumerate(signature.inputs):
        if NUMPY_DTYPES[spec.dtype].kind in "biu":
            continue
        found = [place for place, sample in enumerate(samples) if np.isnan(sample[number]).any()]
        if found:
            element = np.argwhere(np.isnan(samples[found[0]][number]))[0].tolist()
            count = f"{len(found)} of {len(samples)} samples"
            problems.append(f"{spec.name!r}: {count}, first sample {found[0]} at {element}")
    if problems:
        raise InputError(
            "LK1003",
            "the calibration data holds NaN: no range can be chosen from it",
            details=problems,
            hint="leave these samples out, or correct what wrote them",
        )


def _fits(found: Sequence[int], wanted: Sequence[Any]) -> bool:
    """Whether a shape is that of an input; an extent that is no number is a symbolic dim, which takes any."""
    return len(found) == len(wanted) and all(
        not isinstance(extent, int) or size == extent for size, extent in zip(found, wanted, strict=True)
    )
