"""The recipes of docs/contributing.md are true, and the files around contributions are well-formed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
RECIPES = {part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## Recipe: ", PAGE, flags=re.M)[1:]}
MOST_LINES = 30
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")

_SYMBOL = re.compile(r"`([\w.]+)`(?: and `([\w.]+)`)?\s+in\s+`([\w/.-]+\.\w+)`")


def symbols() -> list[tuple[str, str]]:
    """Returns what recipes look for in which file: "`NAME` in `path`"."""
    pages = (PAGE, (ROOT / "docs/contributing/releasing.md").read_text(encoding="utf-8"))
    found = [match for page in pages for match in _SYMBOL.findall(page)]
    return [(name, path) for first, second, path in found for name in (first, second) if name]


def defined_in(path: Path) -> set[str]:
    """Returns the names that a Python file defines in its module and its classes; all words of another file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\w+", text))
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def test_there_are_six_recipes_and_each_is_short() -> None:
    named = ["a torch op", "an ONNX op", "an lk op", "a pass", "a kernel family", "a collective"]
    assert list(RECIPES) == named
    assert {title: len(text.splitlines()) for title, text in RECIPES.items() if text.count("\n") > MOST_LINES} == {}


@pytest.mark.parametrize(("name", "path"), symbols())
def test_a_symbol_of_a_recipe_is_defined_in_its_file(name: str, path: str) -> None:
    assert name in defined_in(ROOT / path)


def test_symbols_are_found() -> None:
    assert len(symbols()) > 35


@pytest.mark.parametrize("title", RECIPES)
def test_the_files_of_a_recipe_exist(title: str) -> None:
    named = re.findall(r"`((?:lowerkit|passes|runtimes|tests|tools|docs)/[\w/.-]+)`", RECIPES[title])
    assert len(named) >= 4
    assert [path for path in named if not (ROOT / path).exists()] == []


def commands() -> list[list[str]]:
    lines = [line.partition("  #")[0].strip() for fence in PAGE.split("```")[1::2] for line in fence.splitlines()]
    inline = [text for text in re.findall(r"`([^`\n]+)`", PAGE) if text.startswith("pytest ")]
    return [shlex.split(line) for line in [*lines, *inline] if line.startswith("pytest ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_selects_tests(words: list[str]) -> None:
    """Each path exists, and what stands behind ``-k`` is in the text of a test file there; NAME is the reader's own."""
    chosen = words[words.index("-k") + 1] if "-k" in words else ""
    paths = [ROOT / word for word in words[1:] if word.startswith("tests/")]
    assert paths and [path for path in paths if not path.exists()] == []
    if chosen != "NAME":
        files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
        assert any(chosen in file.name or chosen in file.read_text(encoding="utf-8") for file in files)


def test_every_hook_runs_a_tool_of_the_environment_and_downloads_nothing() -> None:
    assert [repository["repo"] for repository in HOOKS["repos"]] == ["local"]
    hooks = HOOKS["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "pyright"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_well_formed(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_folders_of_code_owners_exist() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text(encoding="utf-8").splitlines()
    folders = [line.split()[0] for line in lines if line.startswith("/")]
    assert [folder for folder in folders if not (ROOT / folder.strip("/")).is_dir()] == []
