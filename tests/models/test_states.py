"""Buffers that a model changes, from eager to an artifact: run after run, with reset, and session by session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program, lower_program
from lowerkit.errors import RuntimeFault
from lowerkit.program.stage_file import read_stage, write_stage
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.verify import verify_artifact


class Changes(nn.Module):
    """One buffer of 3 x 5, and a second way to change it in each subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(15.0).reshape(3, 5))
        self.kept: torch.Tensor


class Adds(Changes):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        before = self.kept.sum(0)
        self.kept.add_(x)
        return before + self.kept[0]


class IndexCopies(Changes):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept.index_copy_(0, at, x[:1])
        return self.kept * 2


class IndexPuts(Changes):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept[:, at] = x[:, :1]
        return self.kept.sum()


class Copies(Changes):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)
        return self.kept + 1


class Slides(Changes):
    """A window of the last inputs: the buffer is read while it is overwritten."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(torch.cat([self.kept[1:], x[:1]]))
        return self.kept.mean(0)


class ReadsTheOldValue(Changes):
    """The old value is needed after the new one is there, so an update in place would be wrong."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.kept.clone()
        self.kept.index_copy_(0, at, x[:1])
        return self.kept @ x.T, old @ x.T


class UpdatesWithoutKeeping(Changes):
    """The state's value is updated for the output alone: the state must not see it."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        changed = self.kept.index_copy(0, at, x[:1])
        self.kept.add_(1)
        return changed


class UpdatesTwice(Changes):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept.index_copy_(0, at, x[:1])
        between = self.kept.sum()
        self.kept.index_copy_(0, (at + 1) % 3, x[1:2])
        return self.kept + between


class Swaps(Changes):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.ones(3, 5))
        self.other: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        old = self.kept.clone()
        self.kept.copy_(self.other)
        self.other.copy_(old + x)
        return old


class CopiesIntoItself(Changes):
    """What is written to the state is made of the state: the same memory as operand and as table."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept.index_copy_(0, torch.tensor([2, 1, 0]), self.kept.clone())
        return self.kept + x


class OnAPlainObject(nn.Module):
    """A tensor that is no buffer, as a cache object holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = {"cache": torch.zeros(3, 5)}

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.holder["cache"].index_copy_(0, at, x[:1])
        return self.holder["cache"] * 1


MODULES = [
    Adds, IndexCopies, IndexPuts, Copies, Slides, ReadsTheOldValue, UpdatesWithoutKeeping, UpdatesTwice, Swaps,
    CopiesIntoItself, OnAPlainObject,
]  # fmt: skip


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 5, generator=generator), torch.randint(0, 3, (1,), generator=generator)


def arrays(outputs: Any) -> list[Any]:
    return [leaf.numpy().copy() for leaf in (outputs if isinstance(outputs, tuple) else (outputs,))]


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_runs_follow_eager(kind: type[nn.Module], tmp_path: Path) -> None:
    module = kind().eval()
    compiled = lowerkit.compile(module, inputs(0))
    compiled.save(tmp_path / "model.lk")
    verify = verify_artifact(tmp_path / "model.lk")
    assert verify.passed
    assert verify.programs[0].golden
    session = lowerkit.load(tmp_path / "model.lk")
    with torch.no_grad():
        expected = [arrays(module(*inputs(seed))) for seed in range(4)]
    for _ in range(2):
        for seed, wanted in enumerate(expected):
            for actual, reference in zip(session.run(*inputs(seed)), wanted, strict=True):
                np.testing.assert_allclose(actual, reference, rtol=1.3e-6, atol=1e-5)
        session.reset()


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_check_compares_outputs_and_states(kind: type[nn.Module]) -> None:
    module = kind().eval()
    module(*inputs(1))
    report = lowerkit.check(module, inputs(0))
    assert report.passed, report.first_failure
    assert [row.kind for row in report.outputs].count("state") == (2 if kind is Swaps else 1)


def test_a_wrong_state_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output does not depend on the state's new value, so only the state itself can tell."""

    class Silent(Changes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.add_(x)
            return x * 2

    module, x = Silent().eval(), torch.ones(3, 5)
    assert lowerkit.check(module, (x,)).passed
    right = Session.state
    wrong = property(lambda session: {name: value + 1 for name, value in right.__get__(session).items()})
    monkeypatch.setattr(Session, "state", wrong)
    failure = lowerkit.check(module, (x,)).first_failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("kept", "state")


def test_a_stage_file_keeps_where_states_start(tmp_path: Path) -> None:
    program = capture(Adds().eval(), inputs(0))
    lower_program(program, "fused", CompileOptions())
    write_stage(program, tmp_path / "fused.mlir")
    session = compile_program(read_stage(tmp_path / "fused.mlir", "fused")).session
    np.testing.assert_array_equal(session.state["kept"], np.arange(15, dtype=np.float32).reshape(3, 5))
    with torch.no_grad():
        np.testing.assert_allclose(session.run(*inputs(1))[0], Adds()(*inputs(1)).numpy(), rtol=1e-6)


def test_sessions_do_not_share_states(tmp_path: Path) -> None:
    compiled = lowerkit.compile(Adds().eval(), inputs(0))
    compiled.save(tmp_path / "model.lk")
    one, two = lowerkit.load(tmp_path / "model.lk"), lowerkit.load(tmp_path / "model.lk")
    start = np.arange(15, dtype=np.float32).reshape(3, 5)
    x, at = inputs(0)
    one.run(x, at)
    np.testing.assert_array_equal(two.state["kept"], start)
    np.testing.assert_allclose(one.state["kept"], start + x.numpy(), rtol=1e-6)
    one.set_state({"kept": start[::-1]})
    np.testing.assert_array_equal(one.state["kept"], start[::-1])
    one.state["kept"][:] = 0  # a copy
    np.testing.assert_array_equal(one.state["kept"], start[::-1])
    one.reset()
    np.testing.assert_array_equal(one.state["kept"], start)


def test_states_that_do_not_fit_are_refused() -> None:
    session = lowerkit.compile(Adds().eval(), inputs(0)).session
    with pytest.raises(RuntimeFault) as caught:
        session.set_state({"kept": np.zeros((2, 5), np.float32), "none": np.zeros(3)})
    assert caught.value.code == "LK8004"
    assert len(caught.value.details) == 2
    with pytest.raises(RuntimeFault, match="f64"):
        session.set_state({"kept": np.zeros((3, 5))})
