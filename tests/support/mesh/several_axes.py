"""Programs for a mesh of several axes, made by hand: what ranks gather along each axis tells where each of them is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.artifact.writer import write_artifact
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    Buffer,
    CollectiveCall,
    IndexCheck,
    Manifest,
    MeshAxis,
    ProgramSpec,
    Signature,
    Step,
    TensorSpec,
)
from tests.support.handmade_code import f32
from tests.support.mesh.collective_programs import collective, copy

Array = np.ndarray[Any, Any]
COLUMNS = 5


def axes_program(
    signature: Signature, buffers: Sequence[Buffer], steps: Sequence[Step], mesh: Mapping[str, int], **fields: Any
) -> ProgramSpec:
    axes = [MeshAxis(name, size) for name, size in mesh.items()]
    return ProgramSpec(signature, [*buffers], [*steps], [], mesh=axes, **fields)


def along(operation: Any, axis: str, source: int, target: int, phase: Any = "run", **fields: Any) -> Step:
    call = CollectiveCall(operation, axis, "f32", phase=phase, **fields)
    return collective(source, target, call, name=f"{operation}@{axis}", kind=operation, location="model.py:7")


def gathered(mesh: Mapping[str, int], shard: Sequence[str], **fields: Any) -> ProgramSpec:
    """``y``: the parts of ``w`` of all ranks, gathered along the last axis first, so row-major over the mesh.

    ``w`` is stored with a dimension for each axis of ``shard``.
    """
    size = 4 * COLUMNS
    buffers = [Buffer("weight", size, weight="w", shard=",".join(shard)), Buffer("output", size, index=0)]
    steps: list[Step] = []
    source = 0
    for axis, count in reversed(list(mesh.items())):
        size *= count
        buffers.append(Buffer("arena", size))
        steps.append(along("all_gather", axis, source, len(buffers) - 1))
        source = len(buffers) - 1
    buffers[1] = Buffer("output", size, index=0)
    signature = Signature(inputs=[f32("x", 1)], outputs=[f32("y", *mesh.values(), COLUMNS)])
    return axes_program(signature, buffers, [*steps, copy(source, 1)], mesh, **fields)


def parts(mesh: Mapping[str, int], shard: Sequence[str]) -> Array:
    """Returns the weight ``w`` of :func:`gathered`: numbers, all of them different."""
    sizes = [mesh[axis] for axis in shard]
    return np.arange(math.prod(sizes) * COLUMNS, dtype=np.float32).reshape(*sizes, COLUMNS)


def expected(mesh: Mapping[str, int], shard: Sequence[str]) -> Array:
    """Returns ``y`` of :func:`gathered`."""
    held = parts(mesh, shard)
    order = [shard.index(axis) for axis in mesh if axis in shard]
    shape = [size if axis in shard else 1 for axis, size in mesh.items()]
    return np.broadcast_to(held.transpose(*order, -1).reshape(*shape, COLUMNS), (*mesh.values(), COLUMNS))


def write_axes(path: Path, programs: Sequence[ProgramSpec], w: Array | None = None) -> Path:
    features = ["mesh", "places", "index_checks"]
    write_artifact(path, Manifest([*programs], features=features), {}, {} if w is None else {"w": w}, {})
    return path


def write_gathered(path: Path, mesh: Mapping[str, int], shard: Sequence[str]) -> Path:
    return write_axes(path, [gathered(mesh, shard)], parts(mesh, shard))


def at_once(mesh: Mapping[str, int], columns: int = COLUMNS, **fields: Any) -> ProgramSpec:
    """``y``: for each axis the sum of ``x`` along it; all are under way at one time and end in their order of start.

    ``x`` has so many columns, and lies in the arena while it is summed.
    """
    count, size = len(mesh), 4 * columns
    buffers = [Buffer("input", size, index=0), *(Buffer("output", size, index=i) for i in range(count))]
    temporary = [Buffer("arena", size) for _ in range(count + 1)]
    given = 1 + count
    phases = [
        along("all_reduce", axis, given, given + 1 + number, phase)
        for phase in ("start", "done")
        for number, axis in enumerate(mesh)
    ]
    copies = [copy(given + 1 + number, 1 + number) for number in range(count)]
    outputs = [f32(axis, columns) for axis in mesh]
    signature = Signature(inputs=[f32("x", columns)], outputs=outputs)
    return axes_program(signature, [*buffers, *temporary], [copy(0, given), *phases, *copies], mesh, **fields)


def by_place(mesh: Mapping[str, int], axis: str) -> list[ProgramSpec]:
    """Programs for the places along an axis. ``y``: what the rank is given, doubled as often as its place says."""
    buffers = [Buffer("input", 4 * COLUMNS, index=0), Buffer("output", 4 * COLUMNS, index=0)]
    signature = Signature(inputs=[f32("x", COLUMNS)], outputs=[f32("y", COLUMNS)])
    (other,) = [name for name in mesh if name != axis]
    programs: list[ProgramSpec] = []
    for place in range(mesh[axis]):
        temporary = [Buffer("arena", 4 * COLUMNS) for _ in range(place + 1)]
        numbers = [2 + number for number in range(place + 1)]
        doublings = [along("all_reduce", other, source, source + 1) for source in numbers[:-1]]
        steps = [copy(0, 2), *doublings, copy(numbers[-1], 1)]
        programs.append(axes_program(signature, [*buffers, *temporary], steps, mesh, place={axis: place}))
    return programs


def looked_up(mesh: Mapping[str, int]) -> ProgramSpec:
    """``y``: the sums of ``x`` along each axis in turn, after ``i`` was looked up among 4 elements."""
    names = list(mesh)
    buffers = [
        Buffer("input", 16, index=0),
        Buffer("output", 4 * COLUMNS, index=0),
        *(Buffer("arena", 4 * COLUMNS) for _ in range(len(names) + 1)),
        Buffer("input", 4 * COLUMNS, index=1),
    ]
    check = Step(CHECK_KERNEL, [0], check=IndexCheck("i64", [4], operator="aten.embedding"), location="m.py:4")
    sums = [along("all_reduce", axis, 2 + number, 3 + number) for number, axis in enumerate(names)]
    signature = Signature(inputs=[TensorSpec("i", "i64", [2]), f32("x", COLUMNS)], outputs=[f32("y", COLUMNS)])
    last = 2 + len(names)
    return axes_program(signature, buffers, [check, copy(last + 1, 2), *sums, copy(last, 1)], mesh)
