"""Loads under a limit of the address space: refused by name, with the numbers, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowerkit.errors import ResourceError
from lowerkit.runtimes.mapping.address_space import AddressSpace, limited_to, mapped_bytes
from tests.support.mesh.artifacts import write_one_rank

LOAD = """
import sys
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.mapping.address_space import limited_to, mapped_bytes
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.session import Session
try:
    with limited_to(mapped_bytes() + int(sys.argv[2])):
        artifact = open_artifact(sys.argv[1])
        sessions = [Session(artifact, int(sys.argv[3]), "structure") for _ in range(2)]
except LowerkitError as error:
    print(error.render())
"""


def loaded(path: Path, room: int, threads: int = 1) -> str:
    command = [sys.executable, "-c", LOAD, str(path), str(room), str(threads)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of one rank with 160 MB of weights."""
    from lowerkit.artifact.writer import write_artifact
    from lowerkit.runtimes.artifact_reader import open_artifact
    from tests.support.handmade_code import handmade_code
    from tests.support.mesh.artifacts import shards

    small = write_one_rank(tmp_path_factory.mktemp("large") / "small.lk")
    path = small.with_name("large.lk")
    manifest = open_artifact(small).manifest
    weights = {"shards": shards(1), "further": np.zeros(40_000_000, np.float32)}
    write_artifact(path, manifest, handmade_code(), weights)
    return path


def test_weights_without_room_are_refused_with_what_would_do(large: Path) -> None:
    said = loaded(large, 90_000_000)
    assert said.startswith("error[LK7002]: there is no room for the 160.0 MB of weights of "), said
    assert "(RLIMIT_AS) is" in said and "of which" in said
    assert "hint: a mesh of 2 ranks would map about 80.0 MB each; or raise the limit above" in said
    assert loaded(large, 250_000_000) == ""  # both sessions use one mapping


def test_threads_without_room_are_refused(large: Path) -> None:
    said = loaded(large, 30_000_000, threads=64)
    assert said.startswith("error[LK7002]: 64 threads cannot be started: "), said
    assert "RLIMIT_AS" in said


def test_a_limit_that_cannot_be_set() -> None:
    text = "is less than the .* MB that this process has mapped"
    with pytest.raises(ResourceError, match=text) as caught, limited_to(1 << 20):
        pass
    assert caught.value.code == "LK7002"


def test_memory_that_runs_out_in_the_block_is_said_with_the_limit() -> None:
    with limited_to(mapped_bytes() + (64 << 20)):
        assert AddressSpace.limited() is not None
    with pytest.raises(ResourceError, match="RLIMIT_AS") as caught, limited_to(mapped_bytes() + (64 << 20)):
        np.empty(1 << 30, np.uint8)
    assert caught.value.code == "LK7002"
    assert AddressSpace.limited() is None
