"""What each test executes: read from a recorded run, kept in ``tests/executed.json.xz``, read by ``changed.py``.

Vocabulary
    test      a test function with its file, as pytest names it; its cases are one.
    function  a function at the top of a module or a method of a class at its top, with all that it contains.
              A function's name is ``name`` or ``Class.name``.

The file, written with sorted keys and compressed, so that equal records are equal bytes:
    tests      the names of the tests
    sets       sets of tests: numbers in hexadecimal whose bit ``n`` stands for ``tests[n]``
    functions  for each source file, for each function that a test executed, the number of its set
    opened     for each other file of the project that a test opened, the number of its set
"""

from __future__ import annotations

import ast
import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/executed.json.xz"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Executed:
    """The tests that execute each function and the tests that open each file that is not Python.

    Attributes:
        tests: every test of the recorded run.
        functions: by file from the root and by name of the function.
        opened: by file from the root.
    """

    tests: frozenset[str]
    functions: Mapping[str, Mapping[str, frozenset[str]]]
    opened: Mapping[str, frozenset[str]]


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module with their names; those of one name, as overloads are, each."""
    for node in _statements(tree.body):
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in _statements(node.body):
                if isinstance(member, Function):
                    yield f"{node.name}.{member.name}", member


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements; of a condition, those of its branches in its place."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
            if isinstance(node, ast.Try):
                for handler in node.handlers:
                    yield from _statements(handler.body)
        else:
            yield node


def lines_of_functions(text: str) -> dict[int, str]:
    """Return the function that each line of a module belongs to; lines executed at the import belong to none."""
    return {
        line: name
        for name, node in functions_of(ast.parse(text))
        for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    }


def write(executed: Executed, path: Path = RECORD) -> None:
    """Write a record."""
    tests = sorted(executed.tests)
    places = {test: place for place, test in enumerate(tests)}
    numbers: dict[frozenset[str], int] = {}

    def number(of: frozenset[str]) -> int:
        return numbers.setdefault(of, len(numbers))

    functions = {
        file: {name: number(of) for name, of in sorted(named.items())}
        for file, named in sorted(executed.functions.items())
    }
    opened = {file: number(of) for file, of in sorted(executed.opened.items())}
    sets = [f"{sum(1 << places[test] for test in of):x}" for of in numbers]
    text = json.dumps({"tests": tests, "sets": sets, "functions": functions, "opened": opened})
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path = RECORD) -> Executed:
    """Read a record."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    tests: list[str] = content["tests"]
    sets = [_members(int(bits, 16), tests) for bits in content["sets"]]
    functions = {
        file: {name: sets[number] for name, number in named.items()} for file, named in content["functions"].items()
    }
    opened = {file: sets[number] for file, number in content["opened"].items()}
    return Executed(frozenset(tests), functions, opened)


def _members(bits: int, tests: list[str]) -> frozenset[str]:
    return frozenset(test for place, test in enumerate(tests) if bits >> place & 1)


def gather(
    lines: Iterable[tuple[str, str, Iterable[int]]], opened: Mapping[str, Iterable[str]], tests: Iterable[str]
) -> Executed:
    """Make a record of executed lines.

    Args:
        lines: (file from the root, test, line numbers), as often as there are.
        opened: files from the root by test.
        tests: every test that ran.
    """
    owners: dict[str, dict[int, str]] = {}
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file, test, numbers in lines:
        if file not in owners:
            owners[file] = lines_of_functions((ROOT / file).read_text())
        for name in {owners[file][number] for number in numbers if number in owners[file]}:
            found[file][name].add(test)
    by_file: defaultdict[str, set[str]] = defaultdict(set)
    for test, files in opened.items():
        for file in files:
            by_file[file].add(test)
    return Executed(
        frozenset(tests),
        {file: {name: frozenset(of) for name, of in named.items()} for file, named in found.items()},
        {file: frozenset(of) for file, of in by_file.items()},
    )
