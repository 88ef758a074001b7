"""Scripted TorchScript whose branches and loops depend on data, compiled and compared with TorchScript itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.load_model import capture_path
from lowerkit.compiler import compile_program
from lowerkit.errors import LowerkitError


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            y = self.layer(x)
        elif bool(x.max() > 1):
            y = x * 2
        else:
            y = -x
        return y + 1


class While(nn.Module):
    """The condition joins data and a Python number that the loop counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = 0
        while bool(x.abs().sum() < 100) and count < 6:
            x = x + x.abs() + count
            count += 1
        return x


class Halves(nn.Module):
    """Collatz: a branch on an integer in a loop; numbers that come out as tensors."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = (x.abs().sum() * 3).to(torch.int64) + 1
        steps = torch.zeros((), dtype=torch.int64)
        while bool(n > 1):
            if bool(n % 2 == 0):
                n = n // 2
            else:
                n = 3 * n + 1
            steps = steps + 1
        return steps, x * steps


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.relu(self.layer(x)) + x
            if bool(x.max() > 6):
                break
        return x


class Decides(nn.Module):
    """A bool that the caller gives decides when the model is captured."""

    def forward(self, x: torch.Tensor, twice: bool = True) -> torch.Tensor:
        if twice:
            x = x * 2
        return x + 1


EXAMPLES = [torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)) + (seed - 2) for seed in range(5)]


@pytest.mark.parametrize("kind", [Branch, While, Halves, Breaks, Decides], ids=lambda kind: kind.__name__)
def test_scripts_run_as_torchscript_does(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(3)
    script = torch.jit.script(kind().eval())
    script.save(tmp_path / "script.pt")
    program = capture_path(str(tmp_path / "script.pt"), ["x:3x8:f32"], [])
    session = compile_program(program).session
    for x in EXAMPLES:
        with torch.no_grad():
            expected = script(x)
        leaves = expected if isinstance(expected, tuple) else (expected,)
        for actual, wanted in zip(session.run(x), leaves, strict=True):
            np.testing.assert_allclose(actual, wanted.numpy(), rtol=1.3e-6, atol=1e-5)


def test_check_of_a_script() -> None:
    report = lowerkit.check(torch.jit.script(While().eval()), (EXAMPLES[0],))
    assert report.passed, report.first_failure


class Grows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() < 100):
            x = torch.cat([x, x])
        return x


def test_a_loop_that_grows_a_tensor_is_refused() -> None:
    with pytest.raises(LowerkitError) as caught:
        lowerkit.compile(torch.jit.script(Grows().eval()), (EXAMPLES[4],))
    assert caught.value.code in ("LK2001", "LK4001", "LK4002")
