"""A rank maps its own parts of the weights and nothing else of them, and everything is checked as before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import ArtifactError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.manifest import WEIGHTS_ENTRY, Buffer, MeshAxis, ProgramSpec, Signature
from lowerkit.runtimes.mesh.simulated import simulated_sessions
from lowerkit.runtimes.session import load
from tests.support.handmade_code import f32
from tests.support.mesh.collective_programs import copy, write_programs
from tests.support.suite.randomness import RANDOM

Array = np.ndarray[Any, Any]
COUNT = 1 << 16
"""Elements of a rank's part: 256 KiB, more than what lies between parts that are mapped together."""
PART = 4 * COUNT
PAGE = 4096


def mapped(path: Path) -> list[tuple[int, int]]:
    """Returns for each mapping of a file in this process where it begins in the file, and its size."""
    found: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, _, *name = line.split(maxsplit=5)
        if name == [str(path)]:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            found.append((int(offset, 16), end - begin))
    return sorted(found)


def program(mesh: dict[str, int], reads: Sequence[tuple[str, str]], **fields: Any) -> ProgramSpec:
    """Returns weights, each a part of ``PART`` bytes, as outputs."""
    signature = Signature(inputs=[f32("x", 1)], outputs=[f32(f"y{number}", COUNT) for number in range(len(reads))])
    weights = [Buffer("weight", PART, weight=name, shard=shard) for name, shard in reads]
    outputs = [Buffer("output", PART, index=number) for number in range(len(reads))]
    steps = [copy(number, len(reads) + number) for number in range(len(reads))]
    axes = [MeshAxis(name, size) for name, size in mesh.items()]
    return ProgramSpec(signature, [*weights, *outputs], steps, [], mesh=axes, **fields)


def values(ranks: int) -> Array:
    return RANDOM.standard_normal((ranks, COUNT)).astype(np.float32)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Array]]:
    """An artifact for ``tp=4``: two weights of which each rank has a part, and one that all read whole."""
    weights = {"a": values(4), "b": values(4), "c": values(1)}
    path = tmp_path_factory.mktemp("shared") / "model.lk"
    return write_programs(path, [program({"tp": 4}, [("a", "tp"), ("b", "tp"), ("c", "")])], weights), weights


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_maps_its_parts(rank: int, shared: tuple[Path, dict[str, Array]]) -> None:
    path, weights = shared
    with simulate(4, patience=60.0) as simulation:
        session = load(path, threads=1, group=simulation.groups[rank])
        sizes = [size for _, size in mapped(path)]
        a, b, c = session.run(np.zeros(1, np.float32))
        np.testing.assert_array_equal(a, weights["a"][rank])
        np.testing.assert_array_equal(b, weights["b"][rank])
        np.testing.assert_array_equal(c, weights["c"][0])
        assert 3 * PART <= sum(sizes) <= 3 * (PART + 2 * PAGE)
        # What it does not have can be looked at, and is not kept.
        np.testing.assert_array_equal(session.weight("a"), weights["a"])
        assert sum(size for _, size in mapped(path)) == sum(sizes)


def test_parts_behind_each_other_are_one_mapping(shared: tuple[Path, dict[str, Array]]) -> None:
    path, _ = shared
    with simulate(4, patience=60.0) as simulation:
        counts = []
        for rank in (0, 3):
            session = load(path, threads=1, group=simulation.groups[rank])
            counts.append(len(mapped(path)))
            del session
            assert mapped(path) == []
    assert counts == [3, 2]  # the last part of `b` lies before `c`


def test_a_stage_maps_its_own_weights(tmp_path: Path) -> None:
    weights = {"first": values(1), "second": values(1)}
    programs = [
        program({"pp": 2}, [(name, "")], place={"pp": stage}, name="main") for stage, name in enumerate(weights)
    ]
    path = write_programs(tmp_path / "model.lk", programs, weights)
    with simulate(2, patience=60.0) as simulation:
        begins: list[int] = []
        for rank, name in enumerate(weights):
            session = load(path, threads=1, group=simulation.groups[rank])
            ((begin, size),) = mapped(path)
            assert PART <= size <= PART + 2 * PAGE
            np.testing.assert_array_equal(session.weight(name), weights[name])
            assert len(mapped(path)) == 1
            begins.append(begin)
            del session
        outcomes = simulation.run(lambda group: load(path, threads=1, group=group).run(np.zeros(1, np.float32)))
    assert abs(begins[1] - begins[0]) >= PART
    for (given,), stored in zip(outcomes, weights.values(), strict=True):  # pyright: ignore[reportGeneralTypeIssues]
        np.testing.assert_array_equal(given, stored[0])


def test_simulated_ranks_share_one_mapping(shared: tuple[Path, dict[str, Array]]) -> None:
    path, _ = shared
    artifact = open_artifact(path)
    with simulated_sessions(artifact, 1, "checksum") as (_, sessions):
        ((_, size),) = [one for one in mapped(path) if one[1] > PART]
        assert size >= 9 * PART
        assert len(sessions) == 4
    artifact.close()


@pytest.mark.parametrize("integrity", ["checksum", "sha256"])
def test_damage_in_the_part_of_another_rank_is_found(integrity: Any, tmp_path: Path) -> None:
    weights = {"a": values(4), "c": values(1)}
    path = write_programs(tmp_path / "model.lk", [program({"tp": 4}, [("a", "tp")])], weights)
    artifact = open_artifact(path)
    entry, tensor = artifact.entries[WEIGHTS_ENTRY], artifact.weights["a"]
    artifact.close()
    data = bytearray(path.read_bytes())
    data[entry.offset + tensor.begin + 2 * PART + 17] ^= 4
    path.unlink()
    path.write_bytes(data)
    with simulate(4, patience=60.0) as simulation:
        load(path, threads=1, group=simulation.groups[0], integrity="structure")
        with pytest.raises(ArtifactError, match="LK8001") as caught:
            load(path, threads=1, group=simulation.groups[0], integrity=integrity)
    assert WEIGHTS_ENTRY in str(caught.value)


def test_a_weight_that_ranks_cannot_share_is_damage(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "m.lk", [program({"tp": 3}, [("a", "tp")])], {"a": values(4)})
    with (
        simulate(3, patience=60.0) as simulation,
        pytest.raises(ArtifactError, match="shared by the 3 ranks") as caught,
    ):
        load(path, threads=1, group=simulation.groups[1])
    assert caught.value.code == "LK8001"
