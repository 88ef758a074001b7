"""States that live in the memory of an accelerator: where they do, what moves, what a refused run leaves of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.compiler import Compiled
from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.device import Bytes
from lowerkit.runtimes.manifest import COPY_KERNEL, HOST, Manifest
from lowerkit.runtimes.safetensors_header import StoredTensor
from lowerkit.runtimes.validation import manifest_problems
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that


class CountingDevice(InterpretedDevice):
    """Counts the bytes that cross."""

    moved: ClassVar[Counter[str]] = Counter()

    def copy_in(self, address: int, data: Bytes, queue: int) -> None:
        self.moved["in"] += data.size
        super().copy_in(address, data, queue)

    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        self.moved["out"] += data.size
        super().copy_out(data, address, queue)

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        self._bytes(target, size)[...] = self._bytes(source, size)


@pytest.fixture
def npus() -> Generator[None]:
    InterpretedDevice.behaviour = Behaviour()
    CountingDevice.moved.clear()
    targets = {
        "all": target_that("all", lambda op: True),
        "regions": target_that("regions", lambda op: True, "region"),
        "products": target_that("products", lambda op: op.name == "lk.matmul"),
    }
    with installed(targets, dict.fromkeys(targets, CountingDevice)):
        yield


class Cache(nn.Module):
    """Rows that are kept, one of which each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(256.0).reshape(64, 4))
        self.rows: torch.Tensor
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, position, self.linear(x))
        return x @ self.rows.T


X, AT = torch.randn(1, 4), torch.tensor([3])


def compiled(module: nn.Module, target: str) -> Compiled:
    return lowerkit.compile(module.eval(), (X, AT), target, threads=1)


def homes(made: Compiled) -> dict[int, str]:
    return {each.index: each.memory for each in made.parts.program.buffers if each.kind == "state"}


@pytest.mark.parametrize("target", ["all", "regions"])
def test_a_state_that_one_device_uses_stays_there(npus: None, target: str) -> None:
    module = Cache()
    made = compiled(module, target)
    assert homes(made) == {0: target}
    assert "device_states" in made.parts.manifest.features
    session = made.session
    with torch.no_grad():
        for position in (3, 60, 3):
            x, at = torch.randn(1, 4), torch.tensor([position])
            CountingDevice.moved.clear()
            np.testing.assert_allclose(session.run(x, at)[0], module(x, at).numpy(), rtol=1e-5, atol=1e-5)
            assert CountingDevice.moved["in"] <= 32 and CountingDevice.moved["out"] == 64 * 4
    np.testing.assert_allclose(session.state["rows"], module.rows.numpy(), rtol=1e-6)
    session.set_state({"rows": np.ones((64, 4), np.float32)})
    assert (session.state["rows"] == 1).all()
    session.reset()
    assert (session.state["rows"] == np.arange(256, dtype=np.float32).reshape(64, 4)).all()


def test_a_state_that_the_host_uses_as_well_lives_there(npus: None) -> None:
    made = compiled(Cache(), "products")
    assert homes(made) == {0: HOST}
    assert "device_states" not in made.parts.manifest.features


@pytest.mark.parametrize("target", ["all", "regions"])
def test_a_refused_call_changes_no_state(npus: None, target: str) -> None:
    session = compiled(Cache(), target).session
    before = session.state["rows"]
    with pytest.raises(RuntimeFault, match="LK8015"):
        session.run(X, torch.tensor([64]))
    assert (session.state["rows"] == before).all()
    session.run(X, AT)
    assert (session.state["rows"] != before).any(axis=1).nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("target", ["all", "regions"])
def test_sessions_share_no_state(npus: None, target: str, tmp_path: Any) -> None:
    compiled(Cache(), target).save(tmp_path / "m.lk")
    one, other = lowerkit.load(tmp_path / "m.lk"), lowerkit.load(tmp_path / "m.lk")
    one.run(X, AT)
    assert (other.state["rows"] == np.arange(256, dtype=np.float32).reshape(64, 4)).all()
    assert not np.array_equal(one.state["rows"], other.state["rows"])


def test_a_device_that_fails_leaves_a_session_that_runs(npus: None) -> None:
    session = compiled(Cache(), "all").session

    def fail(_launches: int) -> None:
        raise RuntimeError("the bus is on fire")

    InterpretedDevice.behaviour = Behaviour(fail)
    with pytest.raises(RuntimeFault, match="LK8016"):
        session.run(X, AT)
    InterpretedDevice.behaviour = Behaviour()
    session.reset()
    session.run(X, AT)


class Old(nn.Module):
    """The old rows are read behind the update: it cannot be made where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(8, 4))
        self.rows: torch.Tensor

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        old = self.rows.clone()
        self.rows.index_copy_(0, position, x)
        return self.rows @ old.T


@pytest.mark.parametrize("target", ["all", "regions"])
def test_the_old_value_is_there_for_who_reads_it_later(npus: None, target: str) -> None:
    module, session = Old(), compiled(Old(), target).session
    for position in (1, 5, 1):
        x, at = torch.randn(1, 4), torch.tensor([position])
        np.testing.assert_allclose(session.run(x, at)[0], module(x, at).numpy(), rtol=1e-5)


def test_what_a_manifest_says_of_states_is_checked(npus: None) -> None:
    made = compiled(Cache(), "all")
    manifest: Manifest = made.parts.manifest
    own = manifest.programs[0]
    stored: Any = {buffer.weight: None for buffer in own.buffers if buffer.weight}
    for spec in own.signature.states:
        shape = tuple(size for size in spec.shape if isinstance(size, int))
        stored[own.state_initials[spec.name]] = StoredTensor("F32", shape, 0, 4 * math.prod(shape))

    def problems(changed: Manifest) -> list[str]:
        return [each for each in manifest_problems(changed, stored) if "state" in each]

    assert problems(manifest) == []
    features = [each for each in manifest.features if each != "device_states"]
    assert problems(msgspec.structs.replace(manifest, features=features)) == [
        "it has states on devices and does not list them as a required feature"
    ]
    program = manifest.programs[0]
    state = next(buffer for buffer in program.buffers if buffer.kind == "state")
    other = msgspec.structs.replace(program, buffers=[*program.buffers, msgspec.structs.replace(state, memory=HOST)])
    assert problems(msgspec.structs.replace(manifest, programs=[other])) == ["a state lives in two memories"]


def test_no_step_copies_a_state_through_the_host(npus: None) -> None:
    program = compiled(Cache(), "all").parts.program
    for step in program.steps:
        if step.kernel == COPY_KERNEL and any(program.buffers[each].kind == "state" for each in step.buffers):
            assert {program.buffers[each].memory for each in step.buffers} == {"all"}
