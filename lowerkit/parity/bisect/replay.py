"""What reproducers share: arrays in a file, and the last lines that they print."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.bisect.cause import cause_of
from lowerkit.parity.bisect.divergence import EXACT_DB
from lowerkit.parity.bisect.evaluation import evaluate
from lowerkit.parity.gates import GATES
from lowerkit.parity.metrics import compare
from lowerkit.parity.permission import interpreted_runs
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.program import Program

_BF16 = NUMPY_DTYPES["bf16"]


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Returns an ``.npz`` file; bf16, which numpy has no name for, as its bits in uint16."""
    file = io.BytesIO()
    stored = {name: array.view(np.uint16) if array.dtype == _BF16 else array for name, array in arrays.items()}
    np.savez(file, **stored)  # pyright: ignore[reportArgumentType] (the stub takes the names for options)
    return file.getvalue()


def read_inputs(path: Path, program: Program) -> list[Array]:
    """Returns the inputs of ``program`` from an ``.npz`` file."""
    with np.load(path, allow_pickle=False) as stored:
        return [
            stored[spec.name].view(_BF16) if spec.dtype == "bf16" else stored[spec.name]
            for spec in program.signature.inputs
        ]


def show_difference(actual: Sequence[Array], expected: Sequence[Array], limit: float = EXACT_DB) -> int:
    """Prints both values and their distance; returns 1 where any output is less than ``limit`` dB away, else 0."""
    differs = False
    lines: list[str] = []
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        if left.shape != right.shape:
            lines.append(f"output {number}: shape {left.shape}, expected {right.shape}")
            differs = True
            continue
        distance = compare(left, right)
        differs = differs or distance.sqnr_db < limit or not distance.special_equal
        lines += [
            f"output {number}: {distance.sqnr_db:.1f} dB, largest error {distance.max_abs:.4g}",
            f"  computed {_first(left, right, left)}",
            f"  expected {_first(left, right, right)}",
            f"  {cause_of(left, right)}",
        ]
    lines.append("the bug is there" if differs else "no difference: the bug is gone")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(differs)


def kernel_limit(program: Program, inputs: Sequence[Array], exact: Sequence[Array], allowed: Sequence[str]) -> float:
    """Returns the decibels that a kernel is held to.

    Those that gate A asks of a model's output of the first output's type, 100 for f32; or where less exact work is
    allowed half of what that keeps, as an amplitude.

    Args:
        program: the region. inputs: what it reads. exact: its outputs in float64.
        allowed: what may be computed less exactly.
    """
    dtype = program.signature.outputs[0].dtype
    limit = GATES[dtype].model_sqnr_db if dtype in GATES else float("inf")
    for outputs in interpreted_runs(allowed, lambda: evaluate(program, inputs, float64=False).outputs):
        distances = [compare(*pair).sqnr_db for pair in zip(outputs, exact, strict=True)]
        limit = min([limit, *(each - 6.0 for each in distances)])
    return limit


def _first(left: Array, right: Array, shown: Array) -> str:
    """Shows a few elements from the first that differ most."""
    error = np.abs(left.astype(np.float64) - right.astype(np.float64)).ravel()
    start = int(np.nanargmax(error)) if error.size and not np.isnan(error).all() else 0
    return np.array2string(shown.ravel()[start : start + 6].astype(np.float64), precision=6)
