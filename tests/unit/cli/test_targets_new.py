"""`lowerkit targets new`: a package that is short, clean and complete, or nothing at all."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

from lowerkit.errors import InputError
from lowerkit.targets.new_package import write_package
from tests.unit.cli.conftest import RunCommand

MOST_CODE_LINES = 100
WRITTEN = [
    ".github/workflows/test.yml", ".gitignore", "README.md", "chip_7/__init__.py", "chip_7/device.py",
    "chip_7/py.typed", "chip_7/target.py", "pyproject.toml", "tests/test_chip_7.py",
]  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, lowerkit_command: RunCommand) -> Path:
    outcome = lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path / "made")
    assert outcome.code == 0, outcome.err
    return tmp_path / "made"


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def code_lines(path: Path) -> int:
    """Counts the lines that hold code: without comments, docstrings and blank lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    layout = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
    with path.open() as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in layout]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def test_target_and_device_are_short(package: Path) -> None:
    counts = [code_lines(package / "chip_7" / name) for name in ("target.py", "device.py")]
    assert 0 < sum(counts) <= MOST_CODE_LINES, counts


def test_every_file_is_there_and_filled(package: Path) -> None:
    assert files_below(package) == WRITTEN
    assert not [name for name in WRITTEN if re.search("@[A-Z]+@", (package / name).read_text())]
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["name"] == "chip_7"
    assert project["entry-points"] == {
        "lowerkit.targets": {"chip_7": "chip_7.target:Chip7Target"},
        "lowerkit.devices": {"chip_7": "chip_7.device:Chip7Device"},
    }


def test_the_linter_finds_nothing(package: Path) -> None:
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        found = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=package, capture_output=True, text=True, timeout=60
        )
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("before", [True, False], ids=["before new", "behind it"])
def test_json(tmp_path: Path, lowerkit_command: RunCommand, before: bool) -> None:
    words = ["targets", *(["--json"] if before else []), "new", "chip_7", "--folder", tmp_path / "made"]
    outcome = lowerkit_command(*words, *([] if before else ["--json"]))
    document = json.loads(outcome.out)
    assert document.pop("schema") == "lowerkit.targets_new" and document.pop("version") == 2
    assert document["target"] == "chip_7" and document["folder"] == str(tmp_path / "made")
    assert sorted(document["files"]) == [str(tmp_path / "made" / name) for name in WRITTEN]


def test_what_to_type_next(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path / "made")
    assert f"pip install -e {tmp_path}/made\n" in outcome.err
    assert "lowerkit compile model.onnx --target chip_7 -o model.lk" in outcome.err
    assert not lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path / "other", "-q").err


def test_an_empty_folder_is_filled(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    (tmp_path / "made").mkdir()
    assert lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path / "made").code == 0
    assert files_below(tmp_path / "made") == WRITTEN


@pytest.mark.parametrize(
    "name",
    [
        "", "cpu", "Chip", "7chip", "_chip", "chip-7", "chip.7", "chip/7", "../chip", "chip 7", "chip\n", "chíp",
        "c" * 64, "class", "lambda", "json", "cuda", "lowerkit", "numpy", "torch", "tests", "chip+cpu", "chip:v2",
    ],
)  # fmt: skip
def test_names_that_cannot_be_are_refused(name: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("targets", "new", name, "--folder", tmp_path / "made")
    assert outcome.code == 2
    assert outcome.err.startswith("error[LK1009]: ") and "hint: " in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["c", "c" * 63, "chip__7_", "match"])
def test_names_that_can_be_are_taken(name: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    assert lowerkit_command("targets", "new", name, "--folder", tmp_path / "made").code == 0
    compile((tmp_path / "made" / name / "target.py").read_text(), "target.py", "exec")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    (tmp_path / "README.md").write_text("mine")
    outcome = lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path)
    assert outcome.code == 3 and "error[LK1005]" in outcome.err and "hint: " in outcome.err
    assert files_below(tmp_path) == ["README.md"] and (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize("where", ["file", "file/made", "absent/made"])
def test_a_folder_that_cannot_be_made_is_named(where: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    (tmp_path / "file").write_text("mine")
    outcome = lowerkit_command("targets", "new", "chip_7", "--folder", tmp_path / where)
    assert outcome.code == 3 and "error[LK1005]" in outcome.err and str(tmp_path / where) in outcome.err
    assert files_below(tmp_path) == ["file"]


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "empty"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(28, "No space left on device"), InputError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["full", "interrupted"],
)
def test_nothing_is_left_of_a_package_that_was_not_finished(
    is_new: bool,
    error: BaseException,
    raised: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "made"
    if not is_new:
        folder.mkdir()
    write = Path.write_text

    def fail_late(path: Path, text: str, encoding: str) -> int:
        if path.name == "test_chip_7.py":
            raise error
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", fail_late)
    with pytest.raises(raised):
        write_package("chip_7", folder)
    assert folder.exists() is not is_new
    assert is_new or not list(folder.iterdir())
