"""What a run of a mesh takes on the clock of a simulation: exact with given times, and what hides what."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.errors import LowerkitError, UsageError
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.manifest import JUMP_KERNEL, Buffer, CollectiveCall, MeshAxis, Signature, Step, TensorSpec
from lowerkit.runtimes.mesh import timed_run
from lowerkit.runtimes.mesh.run_time import Network, TimedRun
from lowerkit.runtimes.mesh.step_seconds import GivenSeconds, MeasuredSeconds, ModelledSeconds
from lowerkit.runtimes.mesh.timed_run import time_run
from tests.support.handmade_code import f32
from tests.support.mesh.artifacts import COLUMNS, expected, mesh_manifest, write_counting, write_mesh
from tests.support.mesh.collective_programs import (
    collective,
    copy,
    mesh_program,
    one_collective,
    same_bits,
    write_programs,
)
from tests.support.mesh.processes import finished

X = np.arange(COLUMNS, dtype=np.float32)
FRAME = 64 + 4 * COLUMNS
"""Bytes of a message of a rank's row, its header included."""


@contextmanager
def opened(path: Path) -> Generator[Artifact]:
    artifact = open_artifact(path)
    try:
        yield artifact
    finally:
        artifact.close()


def timed(path: Path, network: Network, steps: Any, *inputs: Any) -> TimedRun:
    with opened(path) as artifact:
        return time_run(artifact, inputs or [X], network, steps)


def test_a_run_takes_its_steps_and_what_its_messages_take(tmp_path: Path) -> None:
    run = timed(
        write_mesh(tmp_path / "m.lk"), Network(latency=5e-6, bandwidth=1e6), GivenSeconds({"add": 1e-3, "*": 0.5})
    )
    for rank in run.ranks:
        assert rank.compute == 1e-3
        assert rank.waited == pytest.approx(5e-6 + FRAME / 1e6, abs=2e-9)
        assert rank.seconds == pytest.approx(rank.compute + rank.waited, abs=1e-12)
        assert (rank.messages, rank.bytes) == (1, FRAME)
        assert [(step.name, step.axis) for step in rank.steps] == [("add", ""), ("sum_over_ranks", "tp")]
        assert rank.steps[1].seconds == rank.waited
        assert rank.steps[1].location == "model.py:7"
    assert run.seconds == run.ranks[0].seconds
    for outputs in run.outputs:
        np.testing.assert_array_equal(outputs[0], expected(X))


def test_given_times_and_a_seed_give_the_same_run_to_the_nanosecond(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "m.lk", 3)

    def ranks(seed: int) -> Sequence[Any]:
        network = Network(latency=5e-6, bandwidth=1e9, jitter=3e-6, seed=seed)
        return timed(path, network, GivenSeconds({"*": 20e-6})).ranks

    assert ranks(7) == ranks(7)
    assert ranks(7) != ranks(8)


def test_who_is_late_makes_the_others_wait(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "m.lk")
    run = timed(path, Network(latency=1e-6), MeasuredSeconds([[1e-3, 0.0], [3e-3, 0.0]]))
    assert [rank.compute for rank in run.ranks] == [1e-3, 3e-3]
    assert run.ranks[0].waited == pytest.approx(2e-3 + 1e-6, abs=1e-8)
    assert run.ranks[1].waited == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize(("middle", "waited"), [(2e-6, 3e-6), (50e-6, 0.0)])
def test_a_collective_hides_behind_the_steps_between_its_start_and_its_done(
    middle: float, waited: float, tmp_path: Path
) -> None:
    program = one_collective("all_reduce", "sum", "f32", 2, behind=True)
    path = write_programs(tmp_path / "m.lk", [program])
    first, start, between, done, last = range(len(program.steps))
    seconds = [0.0] * len(program.steps)
    seconds[first], seconds[between], seconds[last] = 1e-6, middle, 1e-6
    run = timed(path, Network(latency=5e-6), MeasuredSeconds([seconds, seconds]), np.ones(8, np.float32))
    for rank in run.ranks:
        assert rank.compute == pytest.approx(2e-6 + middle)
        assert rank.waited == pytest.approx(waited, abs=1e-8)
        assert rank.steps[start].seconds == 0.0
        assert rank.steps[done].seconds == rank.waited


def test_a_model_of_the_device_takes_the_longer_of_operations_and_bytes(tmp_path: Path) -> None:
    (program,) = mesh_manifest().programs
    add, reduce = program.steps
    both = [replace(add, flops=4000, bytes=64), replace(add, flops=4, bytes=("mul", 100, 640)), reduce]
    run = timed(write_mesh(tmp_path / "m.lk", steps=both), Network(), ModelledSeconds(flops=1e9, bandwidth=1e9))
    assert [step.seconds for step in run.ranks[0].steps[:2]] == pytest.approx([4e-6, 64e-6])


def test_times_are_measured_where_none_are_given_and_states_begin_anew(tmp_path: Path) -> None:
    run = timed(write_counting(tmp_path / "m.lk"), Network(latency=1e-6), None)
    for rank in run.ranks:
        named = {step.name: step.seconds for step in rank.steps}
        assert set(named) == {"add", "sum_over_ranks", "count"}
        assert rank.compute == pytest.approx(named["add"] + named["count"], abs=2e-9)
        assert 0 < rank.compute < 1
    np.testing.assert_array_equal(run.outputs[0][0], expected(X))


def test_every_axis_is_simulated(tmp_path: Path) -> None:
    """Sums over ``dp``, then over ``tp``: four ranks, and two messages of each."""
    calls = [CollectiveCall("all_reduce", axis, "f32") for axis in ("dp", "tp")]
    steps = [copy(0, 1), *(collective(1, 1, call, name=call.axis) for call in calls), copy(1, 2)]
    buffers = [Buffer("input", 32, index=0), Buffer("arena", 32), Buffer("output", 32, index=0)]
    program = mesh_program(Signature(inputs=[f32("x", 8)], outputs=[f32("y", 8)]), buffers, steps, 2)
    program = replace(program, mesh=[MeshAxis("dp", 2), MeshAxis("tp", 2)])
    path = write_programs(tmp_path / "m.lk", [program])
    run = timed(path, Network(latency=5e-6), GivenSeconds({"*": 1e-6}), np.ones(8, np.float32))
    for rank in run.ranks:
        assert [step.axis for step in rank.steps] == ["", "dp", "tp", ""]
        assert rank.messages == 2
        assert rank.waited == pytest.approx(10e-6, abs=1e-7)
    assert all((outputs[0] == 4).all() for outputs in run.outputs)


def loop() -> Any:
    """Goes back to the first step as long as ``stop`` is false; copies ``x``."""
    signature = Signature(inputs=[TensorSpec("stop", "i1", []), f32("x", 8)], outputs=[f32("y", 8)])
    buffers = [Buffer("input", 1, index=0), Buffer("input", 32, index=1), Buffer("output", 32, index=0)]
    call = collective(2, 2, CollectiveCall("all_reduce", "tp", "f32", "max"))
    steps = [
        copy(1, 2),
        call,
        Step(JUMP_KERNEL, [0], target=0),
        Step(JUMP_KERNEL, [], target=5),
        copy(2, 1),
        copy(1, 2),
    ]
    return mesh_program(signature, buffers, steps, 2)


def test_jumps_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_programs(tmp_path / "m.lk", [loop()])
    x = np.ones(8, np.float32)
    run = timed(path, Network(), GivenSeconds({"*": 1e-6}), np.array(True), x)
    assert run.ranks[0].compute == pytest.approx(2e-6)
    assert len(run.ranks[0].steps) == 3
    assert same_bits(run.outputs[0][0], x)
    monkeypatch.setattr(timed_run, "_MOST_TURNS", 20)
    with pytest.raises(LowerkitError, match=r"LK8014.*20 turns"):
        timed(path, Network(), GivenSeconds({"*": 1e-6}), np.array(False), x)


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        ({"death": {1: 0}}, ["LK8009", "rank 1 died", "rank 0: all_reduce failed in step 'sum_over_ranks'"]),
        ({"loss": 1.0, "timeout": 2.0}, ["LK8008", "rank 0 of tp=2", "sum_over_ranks", "within 2 s"]),
    ],
)
def test_faults_of_the_network_name_rank_step_and_line(
    network: Mapping[str, Any], parts: Sequence[str], tmp_path: Path
) -> None:
    with pytest.raises(CollectiveFault) as caught:
        timed(write_mesh(tmp_path / "m.lk"), Network(latency=1e-6, **network), GivenSeconds({"*": 1e-3}))
    for part in (*parts, "model.py:7"):
        assert part in str(caught.value)


def test_a_rank_dies_at_the_message_of_the_run_that_was_named(tmp_path: Path) -> None:
    timed(write_mesh(tmp_path / "m.lk"), Network(death={1: 1}), GivenSeconds({"*": 1e-3}))


def test_steps_without_a_time_and_patterns_without_a_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no pattern names step 0 \('add'\) of rank 0"):
        timed(write_mesh(tmp_path / "m.lk"), Network(), GivenSeconds({"linear*": 1.0}))
    assert GivenSeconds({"add*": 1.0, "mul": 1.0}).unused(["add", "adder"]) == ["mul"]


OPTIONS = ["--link", "25GB/s,5us", "--jitter", "1us", "--seed", "7", "--input", f"x:{COLUMNS}:f32"]


def test_the_command_prints_what_each_rank_takes(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "m.lk")
    (times := tmp_path / "times.json").write_text('{"add": "0.9ms"}')
    given = ["run", path, "--sim", 2, *OPTIONS, "--step-times", times]
    code, out, err = finished(tmp_path, *given)
    assert code == 0, err
    assert "rank 1: simulated time 0.90" in out and "compute 0.9 ms, communication waited 5." in out
    documents = [json.loads(finished(tmp_path, *given, "--json")[1]) for _ in range(2)]
    assert documents[0] == documents[1]
    simulated = documents[0]["simulated"]
    assert simulated["seconds"] == max(rank["seconds"] for rank in simulated["ranks"])
    assert set(simulated["ranks"][0]) == {"rank", "seconds", "compute", "waited", "messages", "bytes", "steps"}
    step = simulated["ranks"][1]["steps"][0]
    assert step.pop("seconds") == pytest.approx(0.9e-3)
    assert step == {"name": "add", "kind": "elementwise", "location": "model.py:6", "axis": ""}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc", "2", "--link", "1GB/s,1us"], "--link is for --sim"),
        (["--sim", "2", "--link", "1GB/s"], "expected 2: bandwidth and latency"),
        (["--sim", "2", "--kill", "2@20"], "a rank from 0 to 1"),
        (["--sim", "2", "--kill", "one"], "expected RANK@MESSAGES"),
        (["--sim", "2", "--device-flops", "1T"], "belong together"),
        (["--sim", "2", "--step-times", "unknown.json"], "'mul' names no step"),
        (["--sim", "2", "--step-times", "bad.json"], "no object from patterns"),
        (["--sim", "2", "--step-times", "unknown.json", "--device-flops", "1T"], "exclude each other"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "m.lk")
    (tmp_path / "unknown.json").write_text('{"*": "1us", "mul": "1us"}')
    (tmp_path / "bad.json").write_text('{"*": 1}')
    options = [str(tmp_path / option) if option.endswith(".json") else option for option in options]
    code, _, err = finished(tmp_path, "run", path, *options, "--input", f"x:{COLUMNS}:f32")
    assert code and "LK1009" in err and message in err, err
