"""Artifacts for a mesh of ranks, made by hand: collectives and a sum, no compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lowerkit.artifact.writer import write_artifact
from lowerkit.runtimes.manifest import (
    COLLECTIVE_KERNEL,
    COPY_KERNEL,
    JUMP_KERNEL,
    Buffer,
    CollectiveCall,
    Manifest,
    MeshAxis,
    Signature,
    Step,
)
from tests.support.handmade_code import changed, f32, handmade_code, manifest_of

COLUMNS = 4


def all_reduce(source: int, target: int, *, reduction: Any = "sum") -> Step:
    """Returns the step that reduces f32 over the axis ``tp``."""
    return Step(
        COLLECTIVE_KERNEL,
        [source, target],
        collective=CollectiveCall("all_reduce", "tp", "f32", reduction),
        name="sum_over_ranks",
        kind="collective",
        family="all_reduce",
        location="model.py:7",
        bytes=4 * COLUMNS,
    )


def shards(ranks: int) -> np.ndarray[Any, Any]:
    """Returns the weight that the ranks share: a row for each."""
    return np.arange(ranks * COLUMNS, dtype=np.float32).reshape(ranks, COLUMNS)


def mesh_manifest(ranks: int = 2) -> Manifest:
    """``y = sum over ranks of (x + the rank's row of shards)`` for ``x: f32[4]``."""
    size = 4 * COLUMNS
    signature = Signature(inputs=[f32("x", COLUMNS)], outputs=[f32("y", COLUMNS)])
    buffers = [
        Buffer("input", size, index=0),
        Buffer("weight", size, weight="shards", shard="tp"),
        Buffer("arena", size),
        Buffer("output", size, index=0),
    ]
    add = Step(0, [0, 1, 2], tasks=COLUMNS, name="add", kind="elementwise", family="generic", location="model.py:6")
    mesh = {"mesh": [MeshAxis("tp", ranks)], "features": ["mesh"]}
    return manifest_of(signature, buffers, [add, all_reduce(2, 3)], **mesh)


def write_mesh(path: Path, ranks: int = 2, **fields: Any) -> Path:
    """Writes the artifact of :func:`mesh_manifest`; ``fields`` replace fields of the manifest or its program."""
    write_artifact(path, changed(mesh_manifest(ranks), **fields), handmade_code(), {"shards": shards(ranks)})
    return path


def expected(x: np.ndarray[Any, Any], ranks: int = 2) -> np.ndarray[Any, Any]:
    """Returns what every rank gives for ``x``."""
    return ranks * x + shards(ranks).sum(0)


def write_endless(path: Path, ranks: int = 2) -> Path:
    """Writes an artifact whose ranks reduce again and again for a very long time."""
    (program,) = mesh_manifest(ranks).programs
    add, reduce = program.steps
    return write_mesh(path, ranks, steps=[add, reduce, Step(JUMP_KERNEL, [], target=1, name="again")])


def write_unequal(path: Path, ranks: int = 2) -> Path:
    """Writes an artifact that misses a collective: each rank gives its own part."""
    (program,) = mesh_manifest(ranks).programs
    return write_mesh(path, ranks, steps=[program.steps[0], Step(COPY_KERNEL, [2, 3], name="own_part")])


def write_one_rank(path: Path) -> Path:
    """Writes an artifact without a mesh: ``y = x + shards``."""
    (program,) = mesh_manifest(1).programs
    buffers = [replace(buffer, shard="") for buffer in program.buffers]
    steps = [program.steps[0], Step(COPY_KERNEL, [2, 3], name="result")]
    return write_mesh(path, 1, buffers=buffers, steps=steps, mesh=[], features=[])


def write_counting(path: Path, ranks: int = 2) -> Path:
    """Writes an artifact with a state ``sum``, to which each run adds the rank's row of the shards."""
    (program,) = mesh_manifest(ranks).programs
    given = program.signature
    return write_mesh(
        path,
        ranks,
        signature=Signature(given.inputs, given.outputs, [f32("sum", COLUMNS)]),
        buffers=[*program.buffers, Buffer("state", 4 * COLUMNS, index=0)],
        steps=[*program.steps, Step(0, [4, 1, 4], tasks=COLUMNS, name="count")],
        features=["mesh", "states"],
    )
