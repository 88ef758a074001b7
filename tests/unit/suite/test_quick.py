"""The quick tier has a test of every file, or says why it has none."""

from __future__ import annotations

from pathlib import Path

from tools.suite.changed import existing_tests

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "tests/quick.txt").read_text().splitlines()
CHOSEN = {line.partition("[")[0] for line in LINES if line.startswith("tests/")}
WITHOUT = {line.removeprefix("# none: ").partition(" ")[0] for line in LINES if line.startswith("# none: ")}


def test_every_entry_is_a_test() -> None:
    assert not CHOSEN - existing_tests()


def test_every_file_has_a_test_or_is_named_with_a_reason() -> None:
    files = {test.partition("::")[0] for test in existing_tests()}
    represented = {test.partition("::")[0] for test in CHOSEN}
    assert not files - represented - WITHOUT, "add the most telling test of the file that takes less than a second"
    assert not WITHOUT & represented
    assert not WITHOUT - files
