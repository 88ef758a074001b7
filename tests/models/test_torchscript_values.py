"""Lists, dicts, optional and keyword arguments, numbers, states and in-place ops of scripted TorchScript, compiled."""

# ruff: noqa: UP006, UP035, UP045  # TorchScript does not know the newer spellings

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.program.locations import origin_of
from tests.unit.capture.running import operations


def randn(*shape: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + shift


def assert_same(module: nn.Module, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
    """Compiles for the first call; every call gives TorchScript's values, types and nesting, in turn."""
    torch.manual_seed(1)
    script: Any = torch.jit.script(module.eval())
    compiled = lowerkit.compile(script, calls[0][0], kwargs=calls[0][1])
    for positional, named in calls:
        given = compiled(*positional, **named)
        with torch.no_grad():
            expected = script(*positional, **named)
        leaves = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, Tensor)]
        found = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, np.ndarray)]
        assert len(found) == len(leaves)
        for one, other in zip(found, leaves, strict=True):
            assert one.dtype == other.numpy().dtype
            np.testing.assert_allclose(one, other.numpy(), rtol=1.3e-6, atol=1e-5)


class Lists(nn.Module):
    def forward(self, items: List[Tensor]) -> Tuple[List[Tensor], Tensor]:
        total = items[0]
        for item in items[1:]:
            total = total + item * 2
        return [total, items[-1]], torch.cat(items)


class Collects(nn.Module):
    """A recurrent cell over the steps of a sequence, whose results are appended to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        h, c = torch.zeros(x.size(0), 6), torch.zeros(x.size(0), 6)
        rows: List[Tensor] = []
        for step in range(x.size(1)):
            h, c = self.cell(x[:, step], (h, c))
            rows.append(h)
        return torch.stack(rows, 1), c


class Nested(nn.Module):
    def forward(self, items: Dict[str, List[Tensor]], scale: float = 0.5, minus: bool = False) -> Dict[str, Tensor]:
        total = torch.zeros(3)
        for _, values in items.items():
            for value in values:
                total = total + value * scale
        if minus:
            total = -total
        found: Dict[str, Tensor] = {"total": total}
        found["twice"] = total * 2
        return found


class Rows(nn.Module):
    """Writes element by element into a tensor that it makes."""

    def forward(self, x: Tensor) -> Tensor:
        found = torch.zeros(x.size(0), 2)
        for row in range(x.size(0)):
            found[row, 0] = x[row].sum()
            found[row, 1] += x[row].max()
        return found


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scale = [0.5, 2.0]
        self.table = torch.arange(20.0).reshape(5, 4)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        x = x * self.scale[0] + self.attention(x, x, x)[0] + self.table
        y, (h, _) = self.lstm(x)
        values, places = torch.topk(y, 2)
        return h, values, places


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Lists, ([randn(2, 4), randn(2, 4, seed=1), randn(2, 4, seed=2)],)),
        (Collects, (randn(2, 5, 4),)),
        (Nested, ({"a": [randn(3), randn(3, seed=1)], "b": [randn(3, seed=2)]},)),
        (Rows, (randn(3, 4),)),
        (Layers, (randn(2, 5, 4),)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_python_holds_while_a_script_is_traced(kind: type[nn.Module], arguments: tuple[Any, ...]) -> None:
    assert_same(kind(), [(arguments, {})])


class Optionally(nn.Module):
    def forward(self, x: Tensor, mask: Optional[Tensor] = None, scale: float = 2.0) -> Tensor:
        if mask is not None:
            x = x + mask
        return x * scale


@pytest.mark.parametrize(
    ("positional", "named"),
    [((randn(3),), {}), ((randn(3), randn(3, seed=1)), {}), ((randn(3),), {"scale": 0.5, "mask": randn(3, seed=2)})],
)
def test_optional_and_keyword_arguments(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert_same(Optionally(), [(positional, named)])


@pytest.mark.parametrize("named", [{"x": randn(3), "scale": 1.0}, {"absent": randn(3)}])
def test_arguments_that_do_not_fit(named: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        capture(torch.jit.script(Optionally().eval()), (randn(3),), kwargs=named)
    assert caught.value.code == "LK1003"


class Counts(nn.Module):
    """Numbers that become data in a loop: quotients are doubles, and scale a tensor as numbers do."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        count, total = 0, torch.zeros(())
        while bool(total < 10):
            total = total + x.abs().max() * 0.5 + count / 3 + count // 2
            count += 1
            if count > 50:
                break
        return total, x[count % 3], x.sum() * (count / 7)


class ByCount(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        for turn in range(int(n)):
            x = x * 1.5 + turn
        return x


class ChangesInPlace(nn.Module):
    """What a branch or a loop changes in place is seen through every name of it."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        z = y
        seen = x * 0
        if bool(x.sum() > 0):
            y.add_(1)
        while bool(y.sum() < 10):
            y += 1
            seen.add_(y)
        return y, z, seen


class LeavesEarly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.mean() > 0):
            if bool(x.max() > 2):
                return x * 2
            return x * 3
        return x - 1


@pytest.mark.parametrize("kind", [Counts, ChangesInPlace, LeavesEarly], ids=lambda kind: kind.__name__)
def test_courses_that_data_decides(kind: type[nn.Module]) -> None:
    calls = [((randn(3, 4, seed=seed, shift=shift),), {}) for seed, shift in enumerate((-1.0, 0.0, 0.3, 4.0))]
    assert_same(kind(), calls)


def test_a_number_of_turns_that_is_data() -> None:
    assert_same(ByCount(), [((randn(2, 3), torch.tensor(n)), {}) for n in (4, 0, 1, 9)])


class Reassigns(nn.Module):
    """The old value of a buffer is returned beside the new one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        old = self.total
        self.total = self.total + x
        y = old * 2 if bool(x.sum() > 0) else self.total
        return y, self.total, old


def test_a_buffer_that_is_assigned() -> None:
    assert_same(Reassigns(), [((randn(3, seed=seed),), {}) for seed in range(4)])


class Appends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        items = [x]
        if bool(x.sum() > 0):
            items.append(x * 2)
        return torch.cat(items)


class AppendsInALoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        items: List[Tensor] = []
        while bool(x.sum() < 10):
            x = x + 1
            items.append(x)
        return torch.stack(items)


class Asserts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert bool(x.sum() > 0)
        return x


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Views(nn.Module):
    """A view of what the branch changes in place is read in it too."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        first = y[0]
        z = first
        if bool(x.sum() > 0):
            y.add_(1)
            z = first * 2
        return z


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Appends, "course depends on data"),
        (AppendsInALoop, "changes a list"),
        (Asserts, "exception"),
        (Numbers, "'calls', which is no tensor"),
        (Views, "another view"),
    ],
)
def test_what_is_refused(kind: type[nn.Module], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        capture(torch.jit.script(kind().eval()), (randn(3, shift=1.0),))
    assert caught.value.code == "LK4001"


def test_a_script_without_forward() -> None:
    with pytest.raises(UnsupportedError, match="no forward"):
        capture(torch.jit.script(nn.LSTM(4, 6).eval()), (randn(2, 5, 4),))


def test_lines_of_a_script() -> None:
    program = capture(torch.jit.script(Nested().eval()), ({"a": [randn(3)]},))
    lines = {origin_of(operation.location).source_line for operation in operations(program)}
    assert any(line is not None and line.startswith(__file__) for line in lines)
