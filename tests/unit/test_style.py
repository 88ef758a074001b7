"""Rules of the code base that the linter has no rule for: files are short, and their names say what is inside."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("lowerkit", "passes", "runtimes", "tools")
MOST_LINES = 320
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}


def python_files(*folders: str) -> list[Path]:
    """Returns every Python file below the folders, each once: lowerkit holds links to passes and runtimes."""
    files = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert files
    return sorted(files)


def test_files_hold_one_idea_each() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files(*SOURCES)}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


def test_names_say_what_is_inside() -> None:
    files = python_files(*SOURCES, "tests")
    named = {part for path in files for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not {name for name in named if EMPTY_NAMES & {name, name.rpartition("_")[2]}}
