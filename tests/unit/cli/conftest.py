"""Runs the command line inside the test process: the same entry point, without a second of imports each time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lowerkit.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., Outcome]


@pytest.fixture
def lowerkit_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["lowerkit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(supervised=False)
        captured = capsys.readouterr()
        code = caught.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
