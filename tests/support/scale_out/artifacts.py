"""Artifacts with a batch, made by hand, and what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.artifact.writer import write_artifact
from lowerkit.runtimes.manifest import Buffer, Dim, Manifest, Signature, Step
from tests.support.handmade_code import changed, f32, handmade_code, manifest_of

Array = np.ndarray[Any, Any]


def rows_manifest(*, twice: bool = False, most: int | None = 16) -> Manifest:
    """``y = x + z`` for ``x, z: f32[n, m]``, ``1 <= n <= most``; with ``twice`` it is ``x + x``."""
    size, tasks = ("mul", ("mul", "n", "m"), 4), ("mul", "n", "m")
    signature = Signature(
        inputs=[f32("x", "n", "m"), f32("z", "n", "m")],
        outputs=[f32("y", "n", "m")],
        dims=[Dim("n", 1, most), Dim("m", 1, 64)],
    )
    buffers = [Buffer("input", size, index=0), Buffer("input", size, index=1), Buffer("output", size, index=0)]
    add = Step(0, [0, 0 if twice else 1, 2], tasks=tasks, name="add", kind="elementwise", location="model.py:3")
    return manifest_of(signature, buffers, [add])


def write_rows(path: Path, *, twice: bool = False, most: int | None = 16, ballast: int = 0, **fields: Any) -> Path:
    """Writes the artifact of :func:`rows_manifest`.

    Args:
        path: of the file.
        twice, most: as for :func:`rows_manifest`.
        ballast: bytes of a weight that nothing reads but the check of the file.
        fields: take the place of fields of the manifest or its program.
    """
    weights = {"ballast": np.arange(ballast, dtype=np.uint8)} if ballast else {}
    write_artifact(path, changed(rows_manifest(twice=twice, most=most), **fields), handmade_code(), weights)
    return path


def write_counter(path: Path) -> Path:
    """Writes an artifact with the state ``sum``, to which each run of ``y = x + z`` adds."""
    given = rows_manifest().programs[0]
    signature = Signature(given.signature.inputs, given.signature.outputs, [f32("sum", 4)], given.signature.dims)
    buffers = [*given.buffers, Buffer("state", 16, index=0)]
    steps = [*given.steps, Step(0, [3, 3, 3], tasks=4, name="count")]
    return write_rows(path, signature=signature, buffers=buffers, steps=steps, features=["states"])


def write_fixed(path: Path) -> Path:
    """Writes ``y = x + z`` for ``f32[4]``: a model without a batch."""
    signature = Signature(inputs=[f32("x", 4), f32("z", 4)], outputs=[f32("y", 4)])
    buffers = [Buffer("input", 16, index=0), Buffer("input", 16, index=1), Buffer("output", 16, index=0)]
    return write_rows(path, signature=signature, buffers=buffers, steps=[Step(0, [0, 1, 2], tasks=4, name="add")])


def numbers(rows: int, columns: int = 4, seed: int = 0) -> Array:
    """Returns values whose sums are exact in f32, so that every way to the result gives the same bits."""
    return np.random.default_rng([seed, rows]).integers(-1000, 1000, (rows, columns)).astype(np.float32)
