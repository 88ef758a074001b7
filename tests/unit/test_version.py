"""The version is stated in lowerkit/version.py alone, and everything else reads it there."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import torch
from packaging.version import Version

import lowerkit
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.targets.new_package import write_package

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MOST_CHARACTERS = 160


def test_no_other_file_of_the_package_states_the_version() -> None:
    """A sentence about an earlier version is fine; an assignment of this version in a second place is not."""
    sources = {path.resolve() for name in ("lowerkit", "passes", "runtimes") for path in (ROOT / name).rglob("*.py")}
    stated = re.compile(rf'["\']{re.escape(lowerkit.__version__)}["\']')
    stating = {str(path.relative_to(ROOT)) for path in sources if stated.search(path.read_text(encoding="utf-8"))}
    assert stating == {"lowerkit/version.py"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "lowerkit/version.py"


def test_the_version_is_in_the_normal_form_of_pep_440() -> None:
    assert str(Version(lowerkit.__version__)) == lowerkit.__version__


def test_the_installed_package_has_the_version_of_the_source() -> None:
    installed = importlib.metadata.version("lowerkit")
    assert installed == lowerkit.__version__, "install it again: pip install --no-deps --editable ."


def test_the_command_line_prints_the_version() -> None:
    command = [sys.executable, "-m", "lowerkit", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed == f"lowerkit, version {lowerkit.__version__}\n"


def test_an_artifact_states_the_version_that_wrote_it(tmp_path: Path) -> None:
    lowerkit.compile(torch.nn.ReLU(), (torch.randn(2, 3),)).save(tmp_path / "relu.lk")
    assert open_artifact(tmp_path / "relu.lk").manifest.producer["lowerkit"] == lowerkit.__version__


def test_a_new_target_package_requires_at_least_this_version(tmp_path: Path) -> None:
    write_package("chip", tmp_path / "chip")
    dependencies = tomllib.loads((tmp_path / "chip/pyproject.toml").read_text())["project"]["dependencies"]
    assert f"lowerkit>={lowerkit.__version__}" in dependencies


def test_the_changelog_begins_with_this_version() -> None:
    version = Version(lowerkit.__version__)
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings[0] == (f"{version.base_version} (unreleased)" if version.is_devrelease else str(version))


def test_the_changelog_has_short_entries_under_the_headings_of_keep_a_changelog() -> None:
    headings = re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    lines = CHANGELOG.partition("\n## ")[2].splitlines()
    assert [line for line in lines if len(line) > MOST_CHARACTERS or line.startswith(" ")] == []
