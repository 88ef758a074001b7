"""A change selects the tests that execute what changed, and those that nothing is known of."""

from __future__ import annotations

import pytest

from tools.suite import changed
from tools.suite.changed import Difference, compare, existing_tests, select, users_of
from tools.suite.executed import Executed, gather, lines_of_functions, read, write

MODULE = '''"""A module."""

from os import path

TABLE = {"add": 1}


def first(x):
    """Return x."""
    return x + 1


class Shape:
    """A shape."""

    rank = 2

    def area(self):
        def inner():
            return 2

        return inner()
'''


@pytest.mark.parametrize(
    ("before", "after", "functions", "outside"),
    [
        ('"""A module."""', '"""Another text."""', set(), False),
        ("    return x + 1", "    # a comment\n    return (x + 1)", set(), False),
        ('    """Return x."""\n', "", set(), False),
        ("    return x + 1", "    return x + 2", {"first"}, False),
        ("            return 2", "            return 3", {"Shape.area"}, False),
        ("def first(x):", "def first(x, y=0):", set(), True),
        ('{"add": 1}', '{"add": 2}', set(), True),
        ("rank = 2", "rank = 3", set(), True),
        ("from os import path", "import os", set(), True),
        ("def first(x):", "def second(x):", {"first"}, True),
        ("def first(x):", "def new():\n    pass\n\n\ndef first(x):", set(), True),
    ],
)
def test_what_counts_as_a_change(before: str, after: str, functions: set[str], outside: bool) -> None:
    assert before in MODULE
    assert compare(MODULE, MODULE.replace(before, after, 1)) == Difference(functions, outside)


def test_a_file_that_comes_or_goes_changes_in_every_part() -> None:
    assert compare(None, MODULE) == Difference(set(), True)
    assert compare(MODULE, None) == Difference({"first", "Shape.area"}, True)


def test_lines_belong_to_functions_with_all_that_they_contain() -> None:
    owners = lines_of_functions(MODULE)
    named = {name: MODULE.splitlines()[line - 1].strip() for line, name in sorted(owners.items())}
    assert named == {"first": "return x + 1", "Shape.area": "return inner()"}


def test_a_record_reads_as_it_was_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = gather(
        [
            ("tools/suite/executed.py", "tests/a.py::test_a", range(1, 400)),
            ("tools/suite/executed.py", "tests/b.py::test_b", [1]),
        ],
        {"tests/a.py::test_a": ["README.md"]},
        ["tests/a.py::test_a", "tests/b.py::test_b"],
    )
    assert record.functions["tools/suite/executed.py"]["write"] == {"tests/a.py::test_a"}
    assert record.opened == {"README.md": {"tests/a.py::test_a"}}
    path = tmp_path_factory.mktemp("record") / "executed.json.xz"
    write(record, path)
    assert read(path) == record


RECORD = Executed(
    frozenset({"tests/t/test_a.py::test_one", "tests/t/test_a.py::test_two", "tests/t/test_b.py::test_three"}),
    {
        "lowerkit/errors.py": {"first": frozenset({"tests/t/test_a.py::test_one"})},
        "lowerkit/compiler.py": {"compile": frozenset({"tests/t/test_a.py::test_two"})},
    },
    {"docs/errors.md": frozenset({"tests/t/test_b.py::test_three"})},
)
TREE = {
    "lowerkit/errors.py": "",
    "lowerkit/compiler.py": "from lowerkit.errors import TABLE",
    "lowerkit/parity/__init__.py": "from lowerkit.compiler import LEVELS",
    "lowerkit/parity/judge.py": "import lowerkit.parity",
    "passes/base.py": "",
    "passes/registry.py": "from lowerkit.passes import base",
}
OF_THE_TREE = {"tests/unit/test_style.py::test_names"}


@pytest.mark.parametrize(
    ("file", "difference", "expected"),
    [
        ("lowerkit/errors.py", Difference({"first"}), {"tests/t/test_a.py::test_one"}),
        ("lowerkit/errors.py", Difference({"second"}), set()),
        # lowerkit/compiler.py imports it, and may use the constant that changed.
        ("lowerkit/errors.py", Difference(set(), True), {"tests/t/test_a.py::test_one", "tests/t/test_a.py::test_two"}),
        ("docs/errors.md", None, {"tests/t/test_b.py::test_three"}),
        ("docs/other.md", None, set()),
        ("tests/t/test_a.py", Difference({"test_one"}), {"tests/t/test_a.py::test_one", "tests/t/test_a.py::test_two"}),
    ],
)
def test_a_change_selects_the_tests_that_it_can_affect(
    file: str, difference: Difference | None, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "texts", lambda: TREE)
    selection = select({file: difference}, RECORD, frozenset(RECORD.tests | OF_THE_TREE))
    assert not selection.everything
    assert selection.tests == expected | OF_THE_TREE


@pytest.mark.parametrize(
    "file", ["runtimes/native/executor/thread_pool.cpp", "pyproject.toml", "tests/conftest.py", "tests/golden/a.mlir"]
)
def test_native_code_and_configuration_select_the_whole_tier(file: str) -> None:
    assert select({file: None}, RECORD, RECORD.tests).everything == file


def test_tests_that_the_record_does_not_know_are_selected_and_those_that_went_are_not() -> None:
    existing = frozenset({"tests/t/test_a.py::test_new", "tests/t/test_a.py::test_two"})
    selection = select({"lowerkit/errors.py": Difference({"first"})}, RECORD, existing)
    assert selection.tests == {"tests/t/test_a.py::test_new"}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("lowerkit/errors.py", {"lowerkit/compiler.py"}),
        # A package hands the name on to what imports the package.
        ("lowerkit/compiler.py", {"lowerkit/parity/__init__.py", "lowerkit/parity/judge.py"}),
        ("passes/base.py", {"passes/registry.py"}),
    ],
)
def test_users_of_a_constant_are_found_by_imports(
    file: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "texts", lambda: TREE)
    assert users_of(file, RECORD) == expected


def test_tests_are_found_under_the_names_that_pytest_gives_them(request: pytest.FixtureRequest) -> None:
    collected = {item.nodeid.partition("[")[0] for item in request.session.items}
    assert collected <= existing_tests()
