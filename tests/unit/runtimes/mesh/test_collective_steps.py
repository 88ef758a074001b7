"""Collectives as steps, in simulated ranks: every operation, dtype and reduction gives what numpy gives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.c_interface.emit import emit_c
from lowerkit.errors import ArtifactError, LowerkitError, UsageError
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.runtimes.collective.calls import DTYPES as NATIVE_DTYPES
from lowerkit.runtimes.collective.calls import REDUCTIONS as NATIVE_REDUCTIONS
from lowerkit.runtimes.collective.calls import Operation
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.manifest import (
    ITEM_SIZES,
    JUMP_KERNEL,
    Buffer,
    CollectiveCall,
    Dim,
    MeshAxis,
    Signature,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.memory_plan import arena_bytes
from lowerkit.runtimes.mesh.dims import DTYPES, OPERATIONS, REDUCTIONS
from lowerkit.runtimes.session import Session, load
from lowerkit.runtimes.stepwise import StepwiseRun
from tests.support.handmade_code import f32, write_tanh_of_sum
from tests.support.mesh.collective_programs import (
    CALLS,
    Array,
    collective,
    copy,
    every_dtype,
    expected,
    mesh_program,
    one_collective,
    same_bits,
    write_collectives,
    write_programs,
)
from tests.support.ranks import PATIENCE
from tests.support.suite.randomness import RANDOM

SUM = CollectiveCall("all_reduce", "tp", "f32")


def in_ranks(ranks: int, function: Callable[[Group], Any]) -> list[Any]:
    """Runs a function of a simulated group on each rank; raises what the first failing one raised."""
    with simulate(ranks, patience=3600.0) as simulation:
        outcomes = simulation.run(function)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def session_of(artifact: Artifact, group: Group, name: str = "main") -> Session:
    return Session(artifact, 1, "structure", None, name, None, group)


def test_numbers_of_the_native_interface() -> None:
    assert {name: Operation[name.upper()].value for name in OPERATIONS} == OPERATIONS
    assert {name: NATIVE_REDUCTIONS.index(name) for name in ("sum", "product", "min", "max")} == REDUCTIONS
    assert [numpy_dtype(name).name for name in DTYPES] == list(NATIVE_DTYPES)
    assert set(DTYPES) == set(ITEM_SIZES)


@pytest.mark.parametrize(("operation", "reduction"), CALLS, ids=map("-".join, CALLS))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_gives_what_numpy_gives(ranks: int, operation: str, reduction: str, tmp_path: Path) -> None:
    artifact = open_artifact(write_collectives(tmp_path, operation, reduction, ranks))
    cases = list(every_dtype(operation, reduction, ranks, [0, 1, 7, 1001]))

    def run(group: Group) -> list[list[Array]]:
        sessions = {name: session_of(artifact, group, name) for name, _ in cases}
        return [sessions[name].run(inputs[group.rank]) for name, inputs in cases]

    results = in_ranks(ranks, run)
    for number, (name, inputs) in enumerate(cases):
        for rank, wanted in enumerate(expected(operation, reduction, inputs)):
            y, z = results[rank][number]
            assert same_bits(y, wanted), (name, rank)
            assert same_bits(z, inputs[rank]), (name, rank)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("ranks", [3, 4])
def test_all_ranks_hold_the_same_bits_in_every_run(ranks: int, dtype: str, tmp_path: Path) -> None:
    program = one_collective("all_reduce", "sum", dtype, ranks, behind=True)
    artifact = open_artifact(write_programs(tmp_path / "model.lk", [program]))
    data = [RANDOM.standard_normal(30_011).astype(numpy_dtype(dtype)) for _ in range(ranks)]

    def run(group: Group) -> Array:
        return session_of(artifact, group).run(data[group.rank])[0]

    first, *others = [*in_ranks(ranks, run), *in_ranks(ranks, run)]
    assert all(same_bits(first, other) for other in others)
    total = np.stack(data).astype(np.float64).sum(0)
    accuracy = {"f32": 1e-5, "bf16": 0.05, "f16": 0.01, "f64": 1e-13}[dtype]
    np.testing.assert_allclose(first.astype(np.float64), total, rtol=accuracy, atol=accuracy)


def test_weights_are_shared_and_states_are_whole(tmp_path: Path) -> None:
    """The ranks' parts of a weight, gathered, are the weight; a state is reduced in its place run after run."""
    signature = Signature(outputs=[f32("y", 4, 3), f32("own", 2, 3), f32("total", 5)], states=[f32("s", 5)])
    buffers = [
        Buffer("weight", 24, weight="w", shard="tp"),
        Buffer("output", 48, index=0),
        Buffer("output", 24, index=1),
        Buffer("state", 20, index=0),
        Buffer("output", 20, index=2),
        Buffer("weight", 48, weight="w"),
    ]
    gather = CollectiveCall("all_gather", "tp", "f32")
    scatter = CollectiveCall("reduce_scatter", "tp", "f32")
    steps = [collective(0, 1, gather), collective(5, 2, scatter), collective(3, 3, SUM), copy(3, 4)]
    program = mesh_program(signature, buffers, steps, 2, state_initials={"s": "ones"})
    w = RANDOM.standard_normal((4, 3)).astype(np.float32)
    path = write_programs(tmp_path / "model.lk", [program], {"w": w, "ones": np.ones(5, np.float32)})
    assert arena_bytes(program, {}) == 0

    def run(group: Group) -> list[Array]:
        session = load(path, threads=1, group=group)
        np.testing.assert_array_equal(session.weight("w"), w)
        session.run()
        return session.run()

    for rank, (y, own, total) in enumerate(in_ranks(2, run)):
        np.testing.assert_array_equal(y, w)
        np.testing.assert_array_equal(own, 2 * w[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(total, np.full(5, 4.0))


def branching(ranks: int) -> Any:
    """``y`` is the sum over the ranks where ``take`` is true, else ``x``, in a loop that runs once."""
    signature = Signature(
        inputs=[TensorSpec("take", "i1", []), f32("x", "n")], outputs=[f32("y", "n")], dims=[Dim("n", 0)]
    )
    size: Any = ("mul", "n", 4)
    buffers = [
        Buffer("input", 1, index=0),
        Buffer("input", size, index=1),
        Buffer("output", size, index=0),
        Buffer("arena", size, first_step=0),
    ]
    steps = [
        copy(1, 3),
        Step(JUMP_KERNEL, [0], target=4),
        collective(1, 3, CollectiveCall("all_reduce", "tp", "f32", phase="start")),
        collective(1, 3, CollectiveCall("all_reduce", "tp", "f32", phase="done")),
        copy(3, 2),
    ]
    return mesh_program(signature, buffers, steps, ranks)


def test_collectives_behind_jumps(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [branching(3)])
    x = [RANDOM.integers(1, 9, 33).astype(np.float32) for _ in range(3)]

    def run(group: Group) -> list[Array]:
        session = load(path, threads=1, group=group)
        return [session.run(np.array(take), x[group.rank])[0] for take in (True, False, True)]

    for rank, (first, second, third) in enumerate(in_ranks(3, run)):
        np.testing.assert_array_equal(first, sum(x))
        np.testing.assert_array_equal(second, x[rank])
        np.testing.assert_array_equal(third, sum(x))


def test_profile_and_single_steps_in_a_group(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=True)])
    data = [RANDOM.integers(1, 9, 9).astype(np.float32) for _ in range(2)]

    def run(group: Group) -> tuple[list[str], list[Array]]:
        session = load(path, threads=1, group=group)
        x = data[group.rank]
        kinds = [time.kind for time in session.profile(x)]
        stepwise = StepwiseRun(session, x)
        for number in range(len(session.program.steps)):
            stepwise.run_step(number)
        assert stepwise.read(4).tobytes() == stepwise.outputs[0].tobytes()
        return kinds, stepwise.outputs

    for kinds, (y, _) in in_ranks(2, run):
        assert kinds == ["", "all_reduce", "", "all_reduce", ""]
        np.testing.assert_array_equal(y, data[0] + data[1])


@pytest.mark.parametrize(
    ("operation", "given", "taken", "problem"),
    [
        ("all_reduce", 8, 12, "an all_reduce of f32 in 2 ranks, from 8 bytes to 12 of each"),
        ("all_gather", 8, 8, "an all_gather of f32 in 2 ranks, from 8 bytes to 8 of each"),
        ("all_gather", 6, 12, "an all_gather of f32 in 2 ranks, from 6 bytes to 12 of each"),
        ("reduce_scatter", 8, 8, "a reduce_scatter of f32 in 2 ranks, from 8 bytes to 8 of each"),
        ("all_to_all", 12, 12, "an all_to_all of f32 in 2 ranks, from 12 bytes to 12 of each"),
        ("all_to_all", 8, 16, "an all_to_all of f32 in 2 ranks, from 8 bytes to 16 of each"),
        ("broadcast", 8, 4, "a broadcast of f32 in 2 ranks, from 8 bytes to 4 of each"),
        ("reduce", 2, 2, "a reduce of f32 in 2 ranks, from 2 bytes to 2 of each"),
        ("send", 8, 8, "a send of f32 in 2 ranks, from 8 bytes to 8 of each"),
        ("all_reduce", 7, 7, "an all_reduce of f32 in 2 ranks, from 7 bytes to 7 of each"),
    ],
)
def test_sizes_that_no_collective_has(operation: Any, given: int, taken: int, problem: str, tmp_path: Path) -> None:
    signature = Signature(
        inputs=[TensorSpec("x", "u8", ["n"])], outputs=[TensorSpec("y", "u8", [taken])], dims=[Dim("n", 0)]
    )
    buffers = [Buffer("input", "n", index=0), Buffer("output", taken, index=0)]
    call = CollectiveCall(operation, "tp", "f32", peer=1 if operation == "send" else -1)
    program = mesh_program(signature, buffers, [collective(0, 1, call)], 2)
    path = write_programs(tmp_path / "model.lk", [program])

    def run(group: Group) -> str:
        with pytest.raises(ArtifactError) as error:
            load(path, threads=1, group=group).run(np.zeros(given, np.uint8))
        return str(error.value)

    for text in in_ranks(2, run):
        assert "LK8001" in text and f"for n={given}: step 0 is {problem}" in text


@pytest.mark.parametrize(
    ("offset", "problem"),
    [(0, "step 1 uses the output of the collective that steps 0 to 2 run"), (12, "uses the output"), (16, "")],
)
def test_parts_of_a_buffer_that_overlap_are_found_when_shapes_are_bound(
    offset: int, problem: str, tmp_path: Path
) -> None:
    signature = Signature(inputs=[f32("x", 4)], outputs=[f32("y", 8)])
    buffers = [
        Buffer("input", 16, index=0),
        Buffer("output", 32, index=0),
        Buffer("alias", 16, target=1, offset=0),
        Buffer("alias", 16, target=1, offset=offset),
    ]
    start, done = (CollectiveCall("all_reduce", "tp", "f32", phase=phase) for phase in ("start", "done"))
    steps = [collective(0, 2, start), copy(0, 3), collective(0, 2, done)]
    path = write_programs(tmp_path / "model.lk", [mesh_program(signature, buffers, steps, 2)])
    x = np.arange(4, dtype=np.float32)

    def run(group: Group) -> Any:
        session = load(path, threads=1, group=group)
        if problem:
            with pytest.raises(ArtifactError, match=problem):
                session.run(x)
            return None
        return session.run(x)[0]

    for result in in_ranks(2, run):
        assert problem or result.tolist() == [0, 2, 4, 6, 0, 1, 2, 3]


def test_an_input_that_overlaps_the_output(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("x", 4)], outputs=[f32("y", 4)])
    buffers = [
        Buffer("input", 16, index=0),
        Buffer("output", 16, index=0),
        Buffer("alias", 8, target=1),
        Buffer("alias", 8, target=1, offset=4),
    ]
    program = mesh_program(signature, buffers, [copy(0, 1), collective(2, 3, SUM)], 2)
    path = write_programs(tmp_path / "model.lk", [program])

    def run(group: Group) -> None:
        with pytest.raises(ArtifactError, match="step 1 is an all_reduce whose input and output overlap"):
            load(path, threads=1, group=group).run(np.ones(4, np.float32))

    in_ranks(2, run)


def test_groups_that_do_not_fit(tmp_path: Path) -> None:
    meshed = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=False)])
    plain = write_tanh_of_sum(tmp_path / "plain.lk")
    two_axes = one_collective("all_reduce", "sum", "f32", 2, behind=False)
    two = write_programs(tmp_path / "two.lk", [replace(two_axes, mesh=[MeshAxis("tp", 2), MeshAxis("dp", 3)])])
    with simulate(3) as simulation:
        group = simulation.groups[0]
        for path, given, words in (
            (
                meshed,
                None,
                "model.lk is for a mesh tp=2\n  hint: start its ranks with `lowerkit run model.lk --nproc 2`",
            ),
            (meshed, group, "model.lk is for a mesh tp=2, and the group 'world' has 3 ranks"),
            (plain, group, "plain.lk is for one rank, and the group 'world' has 3 ranks"),
            (two, group, "two.lk is for a mesh tp=2,dp=3, and the group 'world' has 3 ranks"),
        ):
            with pytest.raises(UsageError) as error:
                load(path, threads=1, group=given)
            assert error.value.code == "LK8021" and words in str(error.value)


def test_a_session_of_one_rank_loads_nothing_of_groups(tmp_path: Path) -> None:
    path = write_tanh_of_sum(tmp_path / "model.lk")
    script = (
        "import sys, numpy, lowerkit; from lowerkit.runtimes.verify import verify_artifact\n"
        "lowerkit.load(sys.argv[1]).run(numpy.ones((2, 4), numpy.float32)); verify_artifact(sys.argv[1])\n"
        "assert not [name for name in sys.modules if 'collective' in name], sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=PATIENCE)


def test_meshes_are_not_emitted_as_c(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=False)])
    artifact = open_artifact(path)
    with pytest.raises(LowerkitError, match=r"LK4005.*for a mesh tp=2, and a C object runs in one process"):
        emit_c(artifact)
    artifact.close()
