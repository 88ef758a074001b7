"""Meshes of several axes in one process: where ranks are, programs for places, and whom a failure reaches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.artifact.golden import golden_entries
from lowerkit.artifact.writer import write_artifact
from lowerkit.errors import ArtifactError, RuntimeFault
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.runtimes.manifest import Buffer, GoldenSpec, Manifest, MeshAxis, ProgramSpec
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest
from lowerkit.runtimes.mesh.groups import AxisGroups
from lowerkit.runtimes.mesh.places import place_of, ranks_along
from lowerkit.runtimes.mesh.simulated import first_failure, run_simulated
from lowerkit.runtimes.safetensors_header import StoredTensor
from lowerkit.runtimes.session import load
from lowerkit.runtimes.validation import manifest_problems
from lowerkit.runtimes.verify import run_program, verify_artifact
from tests.support.mesh.several_axes import (
    COLUMNS,
    along,
    at_once,
    by_place,
    expected,
    gathered,
    looked_up,
    parts,
    write_axes,
    write_gathered,
)
from tests.support.suite.randomness import RANDOM

X = np.ones(1, np.float32)


def test_a_rank_is_row_major_and_the_last_axis_varies_fastest() -> None:
    mesh = [MeshAxis("dp", 2), MeshAxis("pp", 1), MeshAxis("tp", 3)]
    assert [tuple(place_of(mesh, rank).values()) for rank in range(6)] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (1, 0, 1), (1, 0, 2),
    ]  # fmt: skip
    assert list(place_of(mesh, 4)) == ["dp", "pp", "tp"]
    assert [ranks_along(mesh, axis, 4) for axis in ("dp", "pp", "tp")] == [[1, 4], [4], [3, 4, 5]]


@pytest.mark.parametrize(
    ("mesh", "shard"),
    [
        ({"dp": 2, "tp": 3}, ("dp", "tp")),
        ({"dp": 2, "tp": 3}, ("tp", "dp")),
        ({"dp": 2, "tp": 2}, ("tp",)),
        ({"dp": 2, "pp": 2, "tp": 2}, ("tp", "dp", "pp")),
        ({"dp": 3, "pp": 2, "tp": 2}, ("dp", "tp")),
        ({"dp": 1, "tp": 2}, ("dp", "tp")),
        ({"tp": 2, "dp": 1}, ("tp",)),
        ({"dp": 1, "tp": 1}, ("tp", "dp")),
        ({"dp": 2, "pp": 1, "tp": 2}, ("pp", "tp", "dp")),
    ],
    ids=str,
)
def test_every_rank_is_where_the_mesh_says(mesh: dict[str, int], shard: tuple[str, ...], tmp_path: Path) -> None:
    path = write_gathered(tmp_path / "model.lk", mesh, shard)
    results = run_simulated(path, [X])
    assert len(results) == math.prod(mesh.values())
    for (y,) in results:
        np.testing.assert_array_equal(y, expected(mesh, shard))


def test_a_program_for_several_axes_is_verified(tmp_path: Path) -> None:
    assert verify_artifact(write_gathered(tmp_path / "model.lk", {"dp": 2, "tp": 2}, ("dp", "tp"))).passed


def test_collectives_along_several_axes_are_under_way_at_one_time(tmp_path: Path) -> None:
    mesh = {"dp": 2, "pp": 2, "tp": 3}
    path = write_axes(tmp_path / "model.lk", [at_once(mesh)])
    x = RANDOM.integers(0, 9, (*mesh.values(), COLUMNS)).astype(np.float32)
    sums = [x.sum(number, keepdims=True) for number in range(3)]

    def run(group: Group) -> list[Any]:
        session = load(path, threads=1, group=group)
        own = np.unravel_index(group.rank, (2, 2, 3))
        for turn in range(3):
            results = session.run(x[own] + turn)
            for number, (result, total) in enumerate(zip(results, sums, strict=True)):
                at = tuple(0 if axis == number else place for axis, place in enumerate(own))
                np.testing.assert_array_equal(result, total[at] + turn * list(mesh.values())[number])
        return []

    with simulate(12, patience=3600.0) as simulation:
        assert simulation.run(run) == [[]] * 12


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_a_rank_runs_the_program_for_its_place(axis: str, tmp_path: Path) -> None:
    mesh = {"dp": 3, "tp": 2} if axis == "dp" else {"dp": 2, "tp": 3}
    path = write_axes(tmp_path / "model.lk", by_place(mesh, axis))
    x = RANDOM.standard_normal(COLUMNS).astype(np.float32)
    axes = [MeshAxis(name, size) for name, size in mesh.items()]
    for rank, (y,) in enumerate(run_simulated(path, [x])):
        np.testing.assert_array_equal(y, x * 2 ** place_of(axes, rank)[axis])
    artifact = open_artifact(path)
    for rank in range(6):
        assert choose_program(artifact.manifest, rank=rank).place == {axis: place_of(axes, rank)[axis]}
    artifact.close()
    report = verify_artifact(path)
    assert report.passed and len(report.programs) == 1


def test_sessions_of_several_meshes_share_a_world(tmp_path: Path) -> None:
    meshes = [{"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}, {"tp": 4}]
    paths = [write_gathered(tmp_path / f"{number}.lk", mesh, list(mesh)) for number, mesh in enumerate(meshes)]

    def run(group: Group) -> int:
        sessions = [load(path, threads=1, group=group) for path in (*paths, paths[0])]
        for session, mesh in zip(sessions, [*meshes, meshes[0]], strict=True):
            np.testing.assert_array_equal(session.run(X)[0], expected(mesh, list(mesh)))
        return len(group.companions[AxisGroups])

    with simulate(4, patience=3600.0) as simulation:
        assert simulation.run(run) == [3] * 4


@pytest.mark.parametrize("messages", [0, 3, 8, 9])
def test_a_rank_that_dies_is_named_by_ranks_that_share_no_axis_with_it(messages: int, tmp_path: Path) -> None:
    path = write_gathered(tmp_path / "model.lk", {"dp": 2, "tp": 2}, ("dp", "tp"))

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        try:
            for _ in range(20):
                session.run(X)
        finally:
            with pytest.raises((CollectiveFault, RankDied)) as error:
                session.run(X)
            assert isinstance(error.value, RankDied) or error.value.code == "LK8011"

    with simulate(4, patience=3600.0, death={3: messages}) as simulation:
        outcomes = simulation.run(run)
        assert simulation.now < 2.0  # seconds, from 1: nobody waited for a deadline
    assert isinstance(outcomes[3], RankDied)
    for rank in range(3):
        failure = outcomes[rank]
        assert isinstance(failure, CollectiveFault), failure
        assert f"at rank {rank} (dp={rank // 2},tp={rank % 2})" in failure.message, failure
        assert "rank 3 (dp=1,tp=1)" in failure.message, failure
    survivor = first_failure(outcomes[:3])
    assert isinstance(survivor, CollectiveFault) and survivor.code == "LK8009"


def test_an_index_out_of_range_on_one_rank_ends_the_run_on_all(tmp_path: Path) -> None:
    path = write_axes(tmp_path / "model.lk", [looked_up({"dp": 2, "tp": 2})])
    x = np.ones(COLUMNS, np.float32)

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        np.testing.assert_array_equal(session.run(np.array([0, 3]), x)[0], 4 * x)
        try:
            session.run(np.array([0, 4 if group.rank == 2 else 3]), x)
        finally:
            with pytest.raises(CollectiveFault, match=r"LK8011\]: the run cannot begin at rank \d \(dp="):
                session.run(np.array([0, 3]), x)

    with simulate(4, patience=3600.0) as simulation:
        outcomes = simulation.run(run)
        assert simulation.now < 2.0
    failure = first_failure(outcomes)
    assert failure is outcomes[2] and isinstance(failure, RuntimeFault) and failure.code == "LK8015"
    for rank in (0, 1, 3):
        other = outcomes[rank]
        assert isinstance(other, CollectiveFault), other
        assert "rank 2 (dp=1,tp=0)" in other.message and "out of range" in other.message


def test_an_index_out_of_range_on_all_ranks_leaves_them_together(tmp_path: Path) -> None:
    path = write_axes(tmp_path / "model.lk", [looked_up({"dp": 2, "tp": 2})])
    x = RANDOM.standard_normal(COLUMNS).astype(np.float32)

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(np.array([0, 3]), x)[0], 4 * x)
            with pytest.raises(RuntimeFault, match=r"LK8015(.|\n)*no state has changed"):
                session.run(np.array([0, 4]), x)

    with simulate(4, patience=3600.0) as simulation:
        assert simulation.run(run) == [None] * 4


@pytest.mark.parametrize("rank", range(4))
def test_ranks_that_find_an_index_out_of_range_alone_do_not_wait(rank: int, tmp_path: Path) -> None:
    """One line of ranks, or one rank, ends its run: those that go on see it in their next collective with them."""
    path = write_axes(tmp_path / "model.lk", [looked_up({"dp": 2, "tp": 2})])
    for bad in ({rank}, {rank, rank ^ 1}, {rank, rank ^ 2}, {rank, rank ^ 3}):

        def run(group: Group, bad: set[int] = bad) -> None:
            session = load(path, threads=1, group=group)
            session.run(np.array([0, 4 if group.rank in bad else 3]), np.ones(COLUMNS, np.float32))

        with simulate(4, patience=3600.0) as simulation:
            outcomes = simulation.run(run)
            assert simulation.now < 2.0
        for each, outcome in enumerate(outcomes):
            assert isinstance(outcome, RuntimeFault), outcome
            assert (outcome.code == "LK8015") == (each in bad), outcome


def problems_of(programs: list[ProgramSpec], features: tuple[str, ...] = ("mesh", "places")) -> list[str]:
    w = parts({"dp": 2, "tp": 2}, ("dp", "tp"))
    weights = {"w": StoredTensor("F32", w.shape, 0, w.nbytes)}
    return manifest_problems(Manifest(programs, features=[*features]), weights)


def placed(**place: int) -> ProgramSpec:
    return gathered({"dp": 2, "tp": 2}, ("dp", "tp"), place=place)


def test_programs_for_places_keep_them_through_the_file() -> None:
    manifest = Manifest([placed(dp=0), placed(dp=1)], features=["mesh", "places"])
    assert decode_manifest(encode_manifest(manifest)).programs == manifest.programs
    assert problems_of(manifest.programs) == []
    assert problems_of([placed(tp=0), placed(tp=1, dp=0), placed(tp=1, dp=1)]) == []


PLACES = {
    "it is for a place in a mesh, and places are not listed": ([placed(dp=0), placed(dp=1)], ("mesh",)),
    "it is for place 2 of 2 along 'dp'": ([placed(dp=2)],),
    "it is for place -1 of 2 along 'dp'": ([placed(dp=-1)],),
    "it is for place 0 of 0 along 'ep'": ([placed(ep=0)],),
    "two programs have one name and one target": ([placed(dp=0), placed(dp=0)],),
    "is there for dp=0 and for tp=1: some ranks are of both": ([placed(dp=0), placed(tp=1)],),
    "is there for all ranks and for tp=1": ([placed(), placed(tp=1)],),
    "is there for 2 of the 4 ranks of its mesh": ([placed(dp=0)],),
    "is there for 3 of the 4 ranks of its mesh": ([placed(dp=0), placed(dp=1, tp=1)],),
    "with other meshes, inputs or outputs": ([placed(dp=0), replace(placed(dp=1), mesh=[MeshAxis("dp", 2)] * 2)],),
}


@pytest.mark.parametrize(("problem", "given"), PLACES.items(), ids=range(len(PLACES)))
def test_places_that_contradict_themselves(problem: str, given: tuple[Any, ...]) -> None:
    found = problems_of(*given)
    if problem.startswith("with"):
        assert found[0].endswith("two axes of the mesh have one name")
        two = replace(placed(dp=1), signature=replace(placed().signature, outputs=[]))
        found = problems_of([placed(dp=0), replace(two, steps=[], buffers=two.buffers[:1])])
    assert any(problem in line for line in found), found


@pytest.mark.parametrize("shard", ["dp,ep", "dp,dp", ",", "tp,", "dp tp"])
def test_weights_that_are_shared_along_what_is_no_axis(shard: str) -> None:
    program = placed()
    buffers = [replace(program.buffers[0], shard=shard), *program.buffers[1:]]
    (problem,) = problems_of([replace(program, buffers=buffers)])
    assert problem == f"buffer 0 (weight) is shared along {shard!r}: no axes of the mesh"


def test_a_mesh_with_too_many_ranks() -> None:
    program = replace(placed(), mesh=[MeshAxis("dp", 1 << 20), MeshAxis("tp", 2)])
    assert "its mesh has more than 1048576 ranks" in problems_of([program])


def test_a_weight_that_does_not_fit_its_parts(tmp_path: Path) -> None:
    mesh = {"dp": 2, "tp": 2}
    program = gathered(mesh, ("dp", "tp"))
    path = write_axes(tmp_path / "model.lk", [program], np.ones((2, 3, COLUMNS), np.float32)[:, :, :-1])
    with pytest.raises(ArtifactError, match=r"LK8001.*buffer 0 \(weight\) has 20 bytes, its tensor 24"):
        run_simulated(path, [X])


def test_an_axis_that_no_rank_shares_takes_part(tmp_path: Path) -> None:
    """A collective along an axis of one rank, in a mesh of more."""
    mesh = {"dp": 1, "tp": 2}
    program = gathered(mesh, ("tp",))
    steps = [along("all_reduce", "dp", 0, len(program.buffers)), *program.steps[1:]]
    whole = replace(program, buffers=[*program.buffers, Buffer("arena", 4 * COLUMNS)])
    first = replace(program.steps[0], buffers=[len(program.buffers), program.steps[0].buffers[1]])
    path = write_axes(tmp_path / "model.lk", [replace(whole, steps=[steps[0], first, *steps[1:]])], parts(mesh, ["tp"]))
    for (y,) in run_simulated(path, [X]):
        np.testing.assert_array_equal(y, expected(mesh, ["tp"]))


def test_golden_values_are_those_of_one_program_for_all_places(tmp_path: Path) -> None:
    mesh = {"dp": 2, "tp": 2}
    first, second = (gathered(mesh, ("dp", "tp"), place={"dp": place}) for place in range(2))
    first = replace(first, golden=GoldenSpec("golden/y"))

    def write(path: Path, spoilt: bool) -> Path:
        def golden(artifact: Artifact) -> dict[str, bytes]:
            results = run_program(artifact, first, [X], 4, None)
            for (y,) in results:
                np.testing.assert_array_equal(y, expected(mesh, ("dp", "tp")))
            results[0][0][0, 1, 2] += spoilt
            return golden_entries([X], {"golden/y": results[0]})

        manifest = Manifest([first, second], features=["mesh", "places"])
        write_artifact(path, manifest, {}, {"w": parts(mesh, ("dp", "tp"))}, golden)
        return path

    (program,) = verify_artifact(write(tmp_path / "good.lk", False)).programs
    assert program.comparison == "bitwise" and program.golden[0].mismatches == 0
    (program,) = verify_artifact(write(tmp_path / "bad.lk", True)).programs
    assert program.golden[0].mismatches == 1
