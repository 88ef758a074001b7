"""What ``--allow tf32`` grants in a check: what it moves eager by, measured and stated, and no wrong kernel."""

# A bug is planted in a private table: that is where it would be.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.dialect.reference.factors import round_significand
from lowerkit.errors import UnsupportedError
from lowerkit.parity.bisect.reproducer import write_reproducer
from lowerkit.parity.gates import judge_model, judge_op
from lowerkit.parity.permission import Permitted, permitted_of
from lowerkit.parity.references.permitted_runs import RoundedFactors, permitted_runs
from lowerkit.targets.cuda.triton import scalars

ON_CARD: dict[str, Any] = {"target": "cuda:sm_80", "device": "cuda-sim"}


class Layers(nn.Module):
    """Two products with something behind each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(96, 64), nn.Linear(64, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)


class Looped(nn.Module):
    """A product in the body of a loop."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(turn: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return turn + 1, torch.tanh(self.linear(x))

        _, x = torch.while_loop(lambda turn, x: turn < 3, body, (torch.tensor(0), x))
        return x * 2


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a planted bug changed are no kernels of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def example(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_what_is_allowed_is_granted_and_said() -> None:
    report = lowerkit.check(Layers().eval(), (example(20, 96),), **ON_CARD, allow=["tf32"], hard=True, bisect=True)
    assert report.passed
    for row in (*report.ops, *report.outputs):
        assert row.verdict.permitted is not None and row.verdict.permitted.names == ("tf32",)
        assert row.verdict.reason.startswith("explained by rounding and tf32: ")
        assert row.to_json()["permitted"]["rms"] > 0
    (line,) = report.to_json()["allowed"]
    assert line.startswith("tf32 (f32 factors of products rounded to 11 bits") and "11 bits; where a value" in line
    assert report.bisection is not None and report.bisection.finding is None
    assert all(step.sound for step in report.bisection.steps)


def test_without_it_the_kernels_are_exact_and_nothing_is_granted() -> None:
    report = lowerkit.check(Layers().eval(), (example(20, 96),), **ON_CARD)
    assert report.passed and "allowed" not in report.to_json()
    assert all(row.verdict.permitted is None for row in (*report.ops, *report.outputs))


def test_a_wrong_kernel_is_found_and_shown_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half of the bias is missing: less than products are worth, more than 11 bits of their factors are."""
    with monkeypatch.context() as patch:
        patch.setitem(scalars._FLOAT_BINARY, "arith.addf", "{0} + {1} * 0.5")
        report = lowerkit.check(Layers().eval(), (example(20, 96),), **ON_CARD, allow=["tf32"], bisect=True)
        assert not report.passed and report.bisection is not None
        found = report.bisection.finding
        assert found is not None and (found.culprit, found.op) == ("kernel family gemm", "arith.addf")
        write_reproducer(report.bisection.reproducer, tmp_path / "shown")
        assert exit_code(tmp_path / "shown") == 1
    assert exit_code(tmp_path / "shown") == 0


def exit_code(folder: Path) -> int:
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(folder / "reproduce.py"))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_bodies_of_loops() -> None:
    report = lowerkit.check(Looped().eval(), (example(9, 64),), **ON_CARD, allow=["tf32"])
    assert report.passed, [row.verdict.reason for row in report.ops]
    inside = [row for row in report.ops if "while_loop.body" in row.name and row.dtype == "f32"]
    assert inside and all(row.verdict.permitted is not None for row in inside)


def test_a_target_that_knows_no_such_permission_is_told() -> None:
    with pytest.raises(UnsupportedError, match="has nothing called 'tf32' that could be allowed"):
        lowerkit.check(Layers().eval(), (example(20, 96),), allow=["tf32"])


def test_an_error_beyond_what_is_granted_fails() -> None:
    generator = np.random.default_rng(0)
    exact = generator.standard_normal(500)
    eager = exact.astype(np.float32)
    moved = (exact * (1 + 1e-4 * generator.standard_normal(500))).astype(np.float32)
    granted = permitted_of(["tf32"], eager, [moved])
    for factor, passes in ((0.9, True), (1.9, True), (4.0, False)):
        ours = (exact + factor * (moved - exact)).astype(np.float32)
        for verdict in (
            judge_op("f32", ours, eager, exact, None, granted),
            judge_model("f32", ours, eager, exact, None, granted),
        ):
            assert verdict.passed is passes and (verdict.permitted is not None) is passes
        assert not judge_op("f32", ours, eager, exact).passed


def test_what_needs_no_permission_does_not_name_one() -> None:
    value = np.linspace(1, 2, 50, dtype=np.float32)
    verdict = judge_op("f32", value, value, value.astype(np.float64), None, Permitted(("tf32",), 1.0, 1.0))
    assert verdict.reason == "within tolerance of eager" and verdict.permitted is None


def test_eager_that_is_not_moved_grants_nothing() -> None:
    x = example(4, 8)
    runs = [run.numpy() for run in permitted_runs(["tf32"], lambda: torch.cumsum(x, 0) * x)]
    assert len(runs) == 6 and permitted_of(["tf32"], (torch.cumsum(x, 0) * x).numpy(), runs) is None


@pytest.mark.parametrize("kwargs", [{}, {"is_causal": True}, {"enable_gqa": True}, {"masked": True}])
def test_attention_is_products_too(kwargs: dict[str, bool]) -> None:
    heads = 2 if kwargs.get("enable_gqa") else 4
    query, key, value = example(1, 4, 6, 16), example(1, heads, 6, 16), example(2, heads, 6, 16)[1:]
    given: dict[str, Any] = dict(kwargs)
    if given.pop("masked", False):
        given["attn_mask"] = example(6, 6) > -0.5

    def run() -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, **given)

    for found in permitted_runs(["tf32"], run):
        distance = float((found - run()).abs().max())
        assert 1e-5 < distance < 2e-2


def test_factors_keep_eleven_bits() -> None:
    values = example(3, 1000).numpy()
    values[0, :6] = [3.4e38, 1e-45, -1e-40, np.inf, np.nan, 0.0]
    found = {how: RoundedFactors(11, how).rounded(torch.from_numpy(values)).numpy() for how in ("nearest", "random")}
    found["down"] = round_significand(values, 11, "down")
    for how, rounded in found.items():
        assert not np.any(rounded[np.isfinite(rounded)].view(np.uint32) & 0x1FFF)
        assert np.array_equal(np.isfinite(rounded), np.isfinite(values))
        finite = np.abs(values) > 1e-30
        finite &= np.isfinite(values)
        relative = np.abs((rounded[finite] - values[finite]) / values[finite]).max()
        assert 0.4 < relative * 2**11 / (1 if how == "nearest" else 2) <= 1
    assert np.all(np.abs(found["down"])[np.isfinite(values)] <= np.abs(values)[np.isfinite(values)])
