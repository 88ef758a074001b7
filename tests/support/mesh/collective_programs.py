"""Programs of collectives for a mesh of one axis, without kernels, and what numpy makes of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lowerkit.artifact.writer import write_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import (
    COLLECTIVE_KERNEL,
    COPY_KERNEL,
    ITEM_SIZES,
    Buffer,
    CollectiveCall,
    Dim,
    Manifest,
    MeshAxis,
    ProgramSpec,
    Signature,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.mesh.structs import WITH_ROOT
from lowerkit.runtimes.session import Session
from tests.support.suite.randomness import RANDOM

Array = np.ndarray[Any, Any]

REDUCTIONS = ("sum", "max", "min", "product")
CALLS = [
    *(("all_reduce", reduction) for reduction in REDUCTIONS),
    *(("reduce_scatter", reduction) for reduction in REDUCTIONS),
    ("reduce", "sum"),
    ("reduce", "max"),
    ("all_gather", "sum"),
    ("all_to_all", "sum"),
    ("broadcast", "sum"),
]
"""The root of those that have one is the last rank."""

GIVEN_WHOLE, TAKEN_WHOLE = ("reduce_scatter", "all_to_all"), ("all_gather", "all_to_all")
BEHIND = "behind"
"""What the names of programs end with whose collective runs behind a copy."""


def copy(source: int, target: int) -> Step:
    return Step(COPY_KERNEL, [source, target])


def collective(source: int, target: int, call: CollectiveCall, **fields: Any) -> Step:
    return Step(COLLECTIVE_KERNEL, [source, target], collective=call, **fields)


def mesh_program(
    signature: Signature, buffers: Sequence[Buffer], steps: Sequence[Step], ranks: int, **fields: Any
) -> ProgramSpec:
    return ProgramSpec(signature, [*buffers], [*steps], [], mesh=[MeshAxis("tp", ranks)], **fields)


def one_collective(operation: Any, reduction: Any, dtype: str, ranks: int, *, behind: bool) -> ProgramSpec:
    """``y``: the collective of ``x``, which has ``n`` elements, or so many for each rank; ``z``: a copy of ``x``."""
    part: list[Expr] = ["n"]
    whole: list[Expr] = [ranks, "n"]
    item = ITEM_SIZES[dtype]
    sizes: dict[int, Expr] = {1: ("mul", "n", item), 2: ("mul", "n", item * ranks)}
    given = 2 if operation in GIVEN_WHOLE else 1
    taken = 2 if operation in TAKEN_WHOLE else 1
    root = ranks - 1 if operation in WITH_ROOT else 0
    signature = Signature(
        inputs=[TensorSpec("x", dtype, whole if given == 2 else part)],
        outputs=[
            TensorSpec("y", dtype, whole if taken == 2 else part),
            TensorSpec("z", dtype, whole if given == 2 else part),
        ],
        dims=[Dim("n", 0)],
    )
    buffers = [
        Buffer("input", sizes[given], index=0),
        Buffer("output", sizes[taken], index=0),
        Buffer("output", sizes[given], index=1),
        Buffer("arena", sizes[given]),
        Buffer("arena", sizes[taken]),
    ]

    def step(phase: Any) -> Step:
        call = CollectiveCall(operation, "tp", dtype, reduction, phase, root)
        return collective(3, 4, call, name=f"{operation}@", kind=operation, location="model.py:7")

    middle = [step("start"), copy(0, 2), step("done")] if behind else [step("run"), copy(0, 2)]
    name = program_name(operation, reduction, dtype, behind=behind)
    return mesh_program(signature, buffers, [copy(0, 3), *middle, copy(4, 1)], ranks, name=name)


def program_name(operation: str, reduction: str, dtype: str, *, behind: bool) -> str:
    return ".".join([operation, reduction, dtype, *([BEHIND] if behind else [])])


def write_programs(path: Path, programs: Sequence[ProgramSpec], weights: Mapping[str, Array] | None = None) -> Path:
    """Writes programs for a mesh; the first one is called ``main`` as well where none is."""

    named = [program.name for program in programs]
    main = [] if "main" in named else [replace(programs[0], name="main")]
    features = ["mesh", "collectives", "places", "states", "control_flow", "index_checks", "devices"]
    write_artifact(path, Manifest([*programs, *main], features=features), {}, weights or {}, {})
    return path


def write_collectives(folder: Path, operation: str, reduction: str, ranks: int) -> Path:
    """Writes a program for every dtype and way to run it."""
    programs = [
        one_collective(operation, reduction, dtype, ranks, behind=behind)
        for dtype in ITEM_SIZES
        for behind in (False, True)
    ]
    return write_programs(folder / f"{operation}.{reduction}.lk", programs)


def random_inputs(operation: str, dtype: str, ranks: int, count: int) -> list[Array]:
    """Returns by rank what goes in: numbers whose sums and products every dtype can hold."""
    shape = (ranks, count) if operation in GIVEN_WHOLE else (count,)
    kind = numpy_dtype(dtype)
    if dtype == "i1":
        return [RANDOM.integers(0, 2, shape).astype(kind) for _ in range(ranks)]
    return [RANDOM.integers(1, 4, shape).astype(kind) for _ in range(ranks)]


def expected(operation: str, reduction: str, inputs: Sequence[Array]) -> list[Array]:
    """Returns by rank what comes out."""
    ranks, stacked = len(inputs), np.stack(inputs)
    if operation == "all_gather":
        return [stacked] * ranks
    if operation == "all_to_all":
        return [stacked[:, rank] for rank in range(ranks)]
    if operation == "broadcast":
        return [stacked[-1]] * ranks
    if stacked.dtype == np.bool_:
        whole = np.asarray(stacked.any(0) if reduction in ("sum", "max") else stacked.all(0))
    else:
        function = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}[reduction]
        whole = function.reduce(stacked.astype(np.int64), axis=0).astype(stacked.dtype)
    if operation == "reduce":
        return [whole if rank == ranks - 1 else np.zeros_like(whole) for rank in range(ranks)]
    return [whole] * ranks if operation == "all_reduce" else [whole[rank] for rank in range(ranks)]


def run_until_it_fails(session: Session, x: Array) -> CollectiveFault:
    """Sums ones over the ranks until that fails; returns with what."""
    try:
        while True:
            total = session.run(x)[0]
            np.testing.assert_array_equal(total, np.full_like(total, total[0]))
    except CollectiveFault as fault:
        return fault


def same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def every_dtype(operation: str, reduction: str, ranks: int, counts: Sequence[int]) -> Iterator[tuple[str, list[Array]]]:
    """Yields the name of a program and inputs by rank: for every dtype every count, run in both ways in turns."""
    for dtype in ITEM_SIZES:
        for number, count in enumerate(counts):
            name = program_name(operation, reduction, dtype, behind=number % 2 == 0)
            yield name, random_inputs(operation, dtype, ranks, count)
