"""Prints the tests that a change can affect, one a line, or the word ``everything``; explains itself on stderr.

What a change is: the difference between the working tree, new files included, and the commit where it left ``main``
(``--since REVISION`` names another). Comments, docstrings and layout are not a change.

    a function          the tests that execute it, by the record ``tests/executed.json.xz``
    the rest of a file  (constants, tables, imports, signatures, functions that came or went) the tests that execute
                        anything of the file or of a file that imports it, and the test files that import it
    a test file         its tests
    another file        the tests that open it
    native code, the project file, the configuration of tests, pinned versions, golden texts, scripts of tools/
                        everything that the default tier runs

Tests that the record does not know are always among them, and so are those that read the whole tree. Record anew by
``tools/test.sh --record``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from tools.suite import executed
from tools.suite.executed import ROOT, Executed

EVERYTHING = ("runtimes/native/", "pyproject.toml", "tests/golden/", "tools/constraints.txt", "tools/setup.sh")
OF_THE_TREE = ("tests/unit/test_architecture.py", "tests/unit/test_style.py")
"""They read every file."""
SOURCES = ("lowerkit", "passes", "runtimes", "tests", "tools")


@dataclass
class Difference:
    """What changed in a Python file: functions by name, and whether anything outside of them did."""

    functions: set[str] = field(default_factory=set[str])
    outside: bool = False


@dataclass
class Selection:
    """Tests and, for people, why: how many each changed thing brought."""

    tests: set[str] = field(default_factory=set[str])
    everything: str = ""
    reasons: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, reason: str, tests: Iterable[str]) -> None:
        """Add tests for a reason."""
        found = set(tests)
        self.reasons[reason] = len(found)
        self.tests |= found


def compare(before: str | None, after: str | None) -> Difference:
    """Return what changed between two texts of a Python file; None where there is no file."""
    old, new = _parts(before), _parts(after)
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    difference = Difference(changed - {""}, "" in changed)
    # A function that came or went may hide or bare another, and registers itself as it is read.
    came_or_went = old.keys() ^ new.keys()
    difference.functions |= came_or_went & old.keys()
    difference.outside |= bool(came_or_went)
    return difference


def _parts(text: str | None) -> dict[str, str]:
    """Return what each function does, by name, and under the empty name all that stands outside of their bodies."""
    if text is None:
        return {"": ""}
    tree = _Plain().visit(ast.parse(text))
    parts: defaultdict[str, str] = defaultdict(str)
    for name, node in list(executed.functions_of(tree)):
        parts[name] += ast.dump(ast.Module(node.body, []))
        node.body = []
    return {**parts, "": ast.dump(tree)}


class _Plain(ast.NodeTransformer):
    """Takes docstrings out."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | executed.Function) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return node


def module_name(file: str) -> str:
    """Return what a file of the project is imported as: ``passes`` and ``runtimes`` are linked into the package."""
    parts = list(Path(file).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(["lowerkit", *parts] if parts[0] in ("passes", "runtimes") else parts)


@cache
def texts() -> Mapping[str, str]:
    """Return the text of every Python file of the project by its path from the root."""
    paths = {path.resolve() for folder in SOURCES for path in (ROOT / folder).rglob("*.py")}
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


@cache
def _imports(text: str) -> frozenset[str]:
    """Return the modules that a text imports, and the names that it imports from modules, each with its module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def importers(module: str) -> set[str]:
    """Return the files that import a module."""
    word = module.rpartition(".")[2]  # reading a file for it is far quicker than parsing it
    return {file for file, text in texts().items() if word in text and module in _imports(text)}


def users_of(file: str, record: Executed) -> set[str]:
    """Return the files that use what stands in a file outside of its functions.

    These are its importers. One that only hands names on (``__init__.py``), or has no function that a test executes,
    stands for its own importers.
    """
    users: set[str] = set()
    left = [file]
    while left:
        one = left.pop()
        for user in importers(module_name(one)) - users:
            users.add(user)
            if user.endswith("__init__.py") or (user not in record.functions and not is_test(user)):
                left.append(user)
    return users


def is_test(file: str) -> bool:
    """Whether a file is one of tests."""
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def tests_of(file: str, record: Executed) -> set[str]:
    """Return the tests that execute anything of a file."""
    return {test for tests in record.functions.get(file, {}).values() for test in tests}


def existing_tests() -> frozenset[str]:
    """Return the tests of the working tree, as pytest names them."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name, _ in executed.functions_of(ast.parse(path.read_text())):
            if name.rpartition(".")[2].startswith("test"):
                found.add(f"{path.relative_to(ROOT)}::{name.replace('.', '::')}")
    return frozenset(found)


def select(changes: Mapping[str, Difference | None], record: Executed, existing: frozenset[str]) -> Selection:
    """Return the tests that a change can affect.

    Args:
        changes: by file, what changed in it; None for a file that is not Python.
        record: what each test executes.
        existing: the tests of the working tree.
    """
    selection = Selection()
    files = {test.partition("::")[0] for test in existing}

    def tests_in(some: Iterable[str]) -> set[str]:
        wanted = set(some)
        return {test for test in existing if test.partition("::")[0] in wanted}

    for file, difference in sorted(changes.items()):
        if file.startswith(EVERYTHING) or Path(file).name == "conftest.py":
            selection.everything = file
        elif is_test(file):
            selection.add(file, tests_in([file]))
        elif difference is None:
            selection.add(file, record.opened.get(file, ()))
        else:
            for name in sorted(difference.functions):
                selection.add(f"{file}: {name}", record.functions.get(file, {}).get(name, ()))
            if difference.outside:
                users = users_of(file, record)
                tests = tests_of(file, record).union(*(tests_of(user, record) for user in users))
                selection.add(f"{file}: outside of functions", tests | tests_in(users & files))
    if new := existing - record.tests:
        selection.add("tests that the record does not know", new)
    selection.add("tests that read the whole tree", tests_in(OF_THE_TREE))
    selection.tests &= existing
    return selection


def git(*arguments: str) -> str:
    """Return what git says."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def base_of_change(since: str | None) -> str:
    """Return the commit that the working tree is compared with."""
    if since is not None:
        return git("rev-parse", "--verify", f"{since}^{{commit}}").strip()
    for main in ("origin/main", "main"):
        found = subprocess.run(
            ["git", "merge-base", "HEAD", main], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return found.stdout.strip()
    return git("rev-parse", "HEAD").strip()


def changes_since(base: str) -> dict[str, Difference | None]:
    """Return what changed since a commit, in the working tree and in files that git does not know yet."""
    names = git("diff", "--name-only", "--no-renames", base).splitlines()
    names += git("ls-files", "--others", "--exclude-standard").splitlines()
    changes: dict[str, Difference | None] = {}
    for name in names:
        if not name.endswith(".py"):
            changes[name] = None
            continue
        shown = subprocess.run(["git", "show", f"{base}:{name}"], cwd=ROOT, capture_output=True, text=True, check=False)
        before = shown.stdout if shown.returncode == 0 else None
        path = ROOT / name
        changes[name] = compare(before, path.read_text() if path.exists() else None)
    return changes


@click.command(help=__doc__)
@click.option("--since", metavar="REVISION", help="compare with this commit instead of the one that left main")
@click.option("--files", is_flag=True, help="print the Python files that changed, not tests")
def main(since: str | None, files: bool) -> None:
    """Print the tests that a change can affect."""
    base = base_of_change(since)
    changes = {
        file: difference
        for file, difference in changes_since(base).items()
        if difference is None or difference.functions or difference.outside or is_test(file)
    }
    if files:
        print("\n".join(file for file in changes if file.endswith(".py") and (ROOT / file).exists()))
        return
    record = executed.read()
    selection = select(changes, record, existing_tests())
    print(f"changed since {base[:12]}: {len(changes)} files", file=sys.stderr)
    if selection.everything:
        print(f"{selection.everything} can affect every test: the default tier runs", file=sys.stderr)
        print("everything")
        return
    for reason, count in sorted(selection.reasons.items(), key=lambda item: -item[1]):
        print(f"{count:5} {'test' if count == 1 else 'tests'}: {reason}", file=sys.stderr)
    by_file = Counter(test.partition("::")[0] for test in selection.tests)
    print(f"together {len(selection.tests)} of {len(record.tests)}, in {len(by_file)} files", file=sys.stderr)
    print("\n".join(sorted(selection.tests)))


if __name__ == "__main__":
    main()
