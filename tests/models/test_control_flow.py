"""torch.cond and torch.while_loop, compiled: every branch and number of turns against eager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.export import Dim

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import UnsupportedError
from lowerkit.parity.check import check_program
from tests.support.models import fresh

Tensors = tuple[torch.Tensor, ...]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class Branch(Layers):
    def forward(self, x: torch.Tensor) -> Tensors:
        def positive(x: torch.Tensor) -> Tensors:
            return torch.relu(self.first(x)), x + 1

        def other(x: torch.Tensor) -> Tensors:
            return self.second(self.first(x)) * 2, x.clone()

        one, two = torch.cond(x.sum() > 0, positive, other, (x,))
        return one + x, two


class Nested(Layers):
    """A branch in a branch; the predicate of the inner one is made inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def large(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 2, lambda x: self.first(x), lambda x: x * 3, (x,)) - 1

        def small(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.min() < -2, lambda x: self.second(x), lambda x: x.abs(), (x,))

        return torch.cond(x.sum() > 0, large, small, (x,)).cumsum(0)


class PassesOn(nn.Module):
    """What comes out of a branch is what went in, in another order, or a constant."""

    def forward(self, x: torch.Tensor) -> Tensors:
        y, z = x * 2, torch.arange(24.0).reshape(3, 8)

        def first(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Tensors:
            return y.clone(), x.clone(), z.clone()

        def second(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Tensors:
            return x.clone(), x.clone(), torch.ones(3, 8)

        a, b, c = torch.cond(x[0, 0] > 0, first, second, (x, y, z))
        return a - b, b, c, y


class Types(nn.Module):
    def forward(self, x: torch.Tensor) -> Tensors:
        n, flag, half = (x * 10).to(torch.int64), x > 0, x.to(torch.bfloat16)

        def first(x: torch.Tensor, n: torch.Tensor, flag: torch.Tensor, half: torch.Tensor) -> Tensors:
            return n + 1, ~flag, half * 2, x.double()

        def second(x: torch.Tensor, n: torch.Tensor, flag: torch.Tensor, half: torch.Tensor) -> Tensors:
            return n * n, flag & (n > 3), half - 1, x.double() * 3

        return torch.cond(x.sum() > 0, first, second, (x, n, flag, half))


class Loop(Layers):
    def forward(self, x: torch.Tensor) -> Tensors:
        def unfinished(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return (i < 10) & (x.abs().sum() < 100)

        def turn(i: torch.Tensor, x: torch.Tensor) -> Tensors:
            return i + 1, x + torch.relu(self.first(x))

        return torch.while_loop(unfinished, turn, (torch.tensor(0), x))


class Swaps(nn.Module):
    """Carried values that change places; copied one after another they would overwrite each other."""

    def forward(self, x: torch.Tensor) -> Tensors:
        turns = (x.abs().sum() % 5).to(torch.int64)

        def unfinished(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return i > 0

        def turn(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
            return i - 1, b.clone(), c.clone(), a.clone()

        return torch.while_loop(unfinished, turn, (turns, x, x * 2, x - 1))


class BranchInLoop(Layers):
    """Collatz steps beside a layer; what is computed before the loop is read in every turn and after it."""

    def forward(self, x: torch.Tensor) -> Tensors:
        n = (x.abs().sum() * 10).to(torch.int64) % 30 + 1
        bias = self.first(x)

        def unfinished(n: torch.Tensor, steps: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            return n > 1

        def turn(n: torch.Tensor, steps: torch.Tensor, total: torch.Tensor) -> Tensors:
            after = torch.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
            return after, steps + 1, torch.tanh(total + bias)

        n, steps, total = torch.while_loop(unfinished, turn, (n, torch.tensor(0), torch.zeros(3, 8)))
        return steps, total, bias, n


class LoopInBranch(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def repeated(x: torch.Tensor) -> torch.Tensor:
            def unfinished(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
                return i < 4

            def turn(i: torch.Tensor, x: torch.Tensor) -> Tensors:
                return i + 1, self.first(x)

            return torch.while_loop(unfinished, turn, (torch.tensor(0), x))[1]

        return torch.cond(x.sum() > 0, repeated, lambda x: self.second(x), (x,))


class LoopInLoop(nn.Module):
    def forward(self, x: torch.Tensor) -> Tensors:
        scale = x.abs().max() + 1

        def outer_turn(i: torch.Tensor, total: torch.Tensor) -> Tensors:
            def inner_turn(j: torch.Tensor, t: torch.Tensor) -> Tensors:
                return j + 1, t + x / scale

            _, t = torch.while_loop(lambda j, t: j < i, inner_turn, (torch.zeros_like(i), total))
            return i + 1, t * 0.5

        return torch.while_loop(lambda i, total: i < 4, outer_turn, (torch.tensor(0), x * 0))


class WritesACache(nn.Module):
    """The rows of a carried table are written one a turn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def turn(i: torch.Tensor, table: torch.Tensor) -> Tensors:
            return i + 1, table.index_copy(0, i.reshape(1), (x[:1] * i).exp())

        rows = x.shape[0]
        return torch.while_loop(lambda i, table: i < rows, turn, (torch.tensor(1), x * 1))[1]


class StateBesideABranch(Layers):
    """A state is written outside; the branch decides what."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 8))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = torch.cond(self.total.sum() > 1, lambda x: -x, lambda x: self.first(x).abs(), (x,))
        self.total.add_(step)
        return self.total * 1


MODULES = [
    Branch, Nested, PassesOn, Types, Loop, Swaps, BranchInLoop, LoopInBranch, LoopInLoop, WritesACache,
    StateBesideABranch,
]  # fmt: skip

EXAMPLES = [torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)) * 2 + (seed - 3) for seed in range(7)]


def flat(outputs: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]


def assert_equal(actual: Any, expected: Any) -> None:
    for ours, theirs in zip(flat(actual), flat(expected), strict=True):
        assert ours.shape == theirs.shape
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1.3e-6, atol=1e-5)
        else:
            np.testing.assert_array_equal(ours.astype(np.float64), theirs.astype(np.float64))


def in_numpy(outputs: Any) -> list[Any]:
    tensors = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy().copy() for t in tensors]


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_runs_as_eager(kind: type[nn.Module]) -> None:
    module = kind().eval()
    compiled = lowerkit.compile(module, (EXAMPLES[0],))
    assert "control_flow" in compiled.parts.manifest.features
    with torch.no_grad():
        for x in EXAMPLES:
            assert_equal(compiled(x), in_numpy(module(x)))


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_the_interpreter_agrees(kind: type[nn.Module]) -> None:
    program = capture(kind().eval(), (EXAMPLES[0],))
    assert program.eager is not None
    count = len(program.signature.outputs)
    for stage in ("raised", "fused"):
        lower_program(program, stage, CompileOptions())
        for x in EXAMPLES[::3]:
            states = {spec.name: program.weights.get(spec.name) for spec in program.signature.states}
            actual = interpret(program.module, [x.numpy()], program.weights.get, states=states)
            assert_equal(actual, program.eager(x.numpy())[:count])


@pytest.mark.parametrize("kind", [Branch, Loop, BranchInLoop], ids=lambda kind: kind.__name__)
def test_check_passes(kind: type[nn.Module]) -> None:
    program = capture(kind().eval(), (EXAMPLES[0],))
    for x in EXAMPLES[::3]:
        report = check_program(replace(fresh(program), example_inputs=[x.numpy()]))
        assert report.passed, report.first_failure


def test_a_symbolic_batch() -> None:
    class Dynamic(Layers):
        def forward(self, x: torch.Tensor) -> Tensors:
            branched = torch.cond(
                x.sum() > 0, lambda x: self.first(x) + torch.ones(x.shape[0], 1), lambda x: self.second(x), (x,)
            )

            def turn(i: torch.Tensor, y: torch.Tensor) -> Tensors:
                return i + 1, torch.tanh(y + x)

            return branched, torch.while_loop(lambda i, y: i < 3, turn, (torch.tensor(0), branched))[1]

    module = Dynamic().eval()
    compiled = lowerkit.compile(module, (EXAMPLES[0],), dynamic_shapes=({0: Dim("rows", min=1, max=40)},))
    for rows in (1, 3, 40):
        for shift in (-1, 1):
            x = torch.randn(rows, 8) + shift
            with torch.no_grad():
                assert_equal(compiled(x), in_numpy(module(x)))


@settings(max_examples=40, deadline=None)
@given(n=some.integers(0, 200), m=some.integers(0, 200))
def test_the_greatest_common_divisor(n: int, m: int) -> None:
    a, b = np.int64(n), np.int64(m)
    assert GCD(np.asarray(a), np.asarray(b)) == np.gcd(a, b)


class Euclid(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.while_loop(lambda a, b: b > 0, lambda a, b: (b.clone(), a % b), (a, b))[0]


GCD = lowerkit.compile(Euclid().eval(), (torch.tensor(4), torch.tensor(6)))


def test_the_branch_that_is_not_taken_is_not_run() -> None:
    module = Branch().eval()
    compiled = lowerkit.compile(module, (EXAMPLES[0],))
    for x in (EXAMPLES[0] * 0 + 1, EXAMPLES[0] * 0 - 1):
        times = [step.nanoseconds for step in compiled.session.profile(x) if step.kind == "matmul"]
        assert 0 < sum(time > 0 for time in times) < len(times), times


def test_bodies_that_give_other_shapes_are_refused() -> None:
    class Unequal(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x, y: x + 1, lambda x, y: y + 1, (x, y)).sum()

    dims = ({0: Dim("rows", min=2, max=9)}, {0: Dim("others", min=2, max=9)})
    with pytest.raises(Exception, match="LK") as caught:
        lowerkit.compile(Unequal().eval(), (torch.ones(3, 4), torch.ones(5, 4)), dynamic_shapes=dims)
    assert isinstance(caught.value, UnsupportedError | lowerkit.errors.CaptureError)
