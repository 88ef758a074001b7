"""What lowerkit refuses, PyTorch runs: one line for each op, with the user's line; the rest is compiled."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import graph_break

from tests.support.torch_backend.beside_eager import assert_as_eager, compiled, programs


def spectrum(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ x.T, -1)
    values = torch.linalg.eigvals(y)
    return values.real.sum() + (y * 2).sum()


def _line(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "lowerkit.torch_backend"]


def test_one_line_says_op_place_and_code(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        assert_as_eager(spectrum, torch.rand(4, 3), calls=2)
    place = f"{__file__}:{_line(spectrum, 'eigvals')}"
    (line,) = [line for line in _lines(caplog) if "eigvals.default" in line]
    assert line.startswith(f"PyTorch runs aten.linalg_eigvals.default at {place} [LK4001]: ")
    assert programs() == 2  # what stands before, and what stands after


@pytest.mark.parametrize("strict", ["fullgraph", "on_refusal"])
def test_a_whole_graph_is_an_error(strict: str) -> None:
    strictly: dict[str, Any] = {"fullgraph": True} if strict == "fullgraph" else {"on_refusal": "error"}
    fast = compiled(spectrum, **strictly)
    with pytest.raises(Exception, match="linalg_eig") as caught, torch.no_grad():
        fast(torch.rand(4, 3))
    assert f"{__file__}:{_line(spectrum, 'eigvals')}" in str(caught.value)
    assert "LK4001" in str(caught.value)


def test_dropout_is_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).train()
    fast, x = compiled(module), torch.rand(2, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        first, second = fast(x), fast(x)
    assert not torch.equal(first, second)
    assert any("random numbers" in line for line in _lines(caplog))


def test_random_numbers_are_drawn_in_their_order() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        a = torch.rand(3)
        b = torch.rand(3) + torch.linalg.eigvals(x @ x.T).real.sum() * 0
        return torch.stack([a, b, torch.rand(3)])

    fast, x = compiled(draw), torch.rand(3, 3)
    with torch.no_grad():
        torch.manual_seed(3)
        expected = draw(x)
        torch.manual_seed(3)
        torch.testing.assert_close(fast(x), expected)


def test_a_break_of_dynamo_s() -> None:
    def decide(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum().item() > 0:
            return x + 1
        return x[x < -1]

    fast = compiled(decide)
    with torch.no_grad():
        for x in (torch.ones(3), -torch.ones(4)):
            torch.testing.assert_close(fast(x), decide(x))


def test_a_break_says_what_dynamo_says_in_words(caplog: pytest.LogCaptureFixture) -> None:
    def talk(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum() > 0:
            x = x + 1
        graph_break()  # not print: who imports Ray in this process replaces it
        return torch.softmax(x, -1)

    fast = compiled(talk)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        torch.testing.assert_close(fast(torch.ones(3)), talk(torch.ones(3)))
    branch, ended = _lines(caplog)
    place = f"{__file__}:{_line(talk, 'x.sum')}"
    assert branch == f"PyTorch runs what is at {place} [LK2001]: a branch or loop depends on the values of a tensor"
    assert f"{__file__}:{_line(talk, 'graph_break')} [LK2001]: " in ended
    assert "`torch._dynamo.graph_break()`" in ended and "Hint" not in ended


def test_a_break_in_a_package_is_at_the_users_line_that_calls_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site-packages" / "wrapping_words" / "words.py"
    file.parent.mkdir(parents=True)
    broken = "def inner():\n    torch._dynamo.graph_break()\n"
    file.write_text(f"import torch\n\n{broken}\ndef wrapped(*words):\n    inner()\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    wrapped = import_module("wrapping_words.words").wrapped

    def talk(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        wrapped("here")
        return torch.softmax(x, -1)

    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        assert_as_eager(talk, torch.ones(3))
    place = f"{__file__}:{_line(talk, 'wrapped(')}, in wrapped at wrapping_words/words.py:4"
    assert [line for line in _lines(caplog) if line.startswith(f"PyTorch runs what is at {place} [LK2001]: ")]


def test_nothing_is_said_where_nothing_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        assert_as_eager(lambda x: torch.softmax(x, -1), torch.rand(4, 3))
    assert not _lines(caplog)
