"""An operator that a version of PyTorch lacks costs what needs it, and nothing else."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowerkit import torch_version
from lowerkit.capture.torch_export.operators import MissingOperator, aten
from lowerkit.errors import UnsupportedError, UsageError

CAPTURE = Path(importlib.import_module("lowerkit.capture").__file__ or "").parent


def test_what_is_there_is_the_overload() -> None:
    assert aten.relu.default is torch.ops.aten.relu.default
    assert torch.equal(aten.relu(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_what_is_missing_is_refused_when_it_is_called() -> None:
    for missing in (aten.no_such_operator, aten.no_such_operator.default, aten.relu.no_such_overload):
        assert isinstance(missing, MissingOperator)
        with pytest.raises(UnsupportedError, match=r"LK4001.*has no operator aten::"):
            missing(1)
    assert len({aten.no_such_operator.default, aten.no_such_operator.out}) == 2


def test_no_module_looks_an_operator_up_without_the_guard() -> None:
    unguarded = re.compile(r"torch\.ops\.aten\b|from torch\.ops")
    offending = [path.name for path in CAPTURE.rglob("*.py") if unguarded.search(path.read_text())]
    assert not offending


def test_capture_survives_without_any_operator_of_its_tables() -> None:
    """Each name that the tables of capture mention is taken away in turn: what remains imports and captures."""
    names = sorted(
        {name for path in CAPTURE.rglob("*.py") for name in re.findall(r"^ +aten\.(\w+)\.\w+:", path.read_text(), re.M)}
    )
    assert {"cholesky", "triangular_solve"} <= set(names)
    code = f"""
import sys, torch
import torch._dynamo, torch.export  # what torch makes of its own operators, before any is taken away
gone = set({names!r}) - {{"batch_norm", "contiguous", "detach", "alias", "reshape", "to"}}
namespace = type(torch.ops.aten)
own = namespace.__getattr__
def without(self, name):
    if self.name == "aten" and name in gone and sys._getframe(1).f_globals["__name__"].startswith("lowerkit"):
        raise AttributeError(f"'_OpNamespace' 'aten' object has no attribute {{name!r}}")
    return own(self, name)
for name in gone:
    torch.ops.aten.__dict__.pop(name, None)
namespace.__getattr__ = without
from lowerkit.capture.capture import capture
capture(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval(), (torch.zeros(2, 3),))
from lowerkit.capture.torch_export.decompositions.linear_algebra import lu_cholesky as triangles
assert not any(str(target).startswith("aten.cholesky") for target in triangles.TABLE)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.10.0", True),
        ("2.13.0+cpu", True),
        ("2.15.1", True),
        ("2.9.1", False),
        ("2.16.0.dev1", False),
        ("3.0", False),
    ],
)
def test_versions_that_are_not_tested_are_refused(
    version: str, supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    torch_version.require_torch.cache_clear()
    try:
        if supported:
            torch_version.require_torch()
        else:
            with pytest.raises(UsageError, match=rf"LK1007.*{re.escape(version)}.*2\.10 to 2\.15"):
                torch_version.require_torch()
    finally:
        torch_version.require_torch.cache_clear()


def test_the_bounds_are_those_of_the_package() -> None:
    (line,) = re.findall(r'"torch([<>=][^"]*)"', (CAPTURE.parents[1] / "pyproject.toml").read_text())
    oldest, newest = torch_version.OLDEST, torch_version.NEWEST
    assert line == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
