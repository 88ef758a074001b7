"""Some of torch's own cases; tools/torch_distributed_suite.py runs all of them and writes the page checked here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_cases_of_torch_pass(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    command = [sys.executable, str(ROOT / "tools/torch_distributed_suite.py"), "--state", str(state)]
    subprocess.run([*command, "--only", "test_gather_object"], check=True, timeout=240, capture_output=True)
    verdicts = json.loads(state.read_text())
    ran = [name for name, row in verdicts.items() if not row["gloo"].startswith("skipped")]
    assert len(ran) == 2, verdicts
    assert all(verdicts[name] == {"gloo": "passed", "lowerkit": "passed"} for name in ran), verdicts


def test_the_page_counts_its_rows_and_lists_no_case_that_only_gloo_passes() -> None:
    page = (ROOT / "docs/results/torch-distributed-suite.md").read_text()
    rows = re.findall(r"^\| (test_\w+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    passed = [sum(row[column] == "passed" for row in rows) for column in (1, 2)]
    counts = [int(number) for number in re.findall(r"\b\d+\b", page.partition("Of ")[2].partition("\n\n")[0])]
    assert counts[1:] == [len(rows), *passed, sum(row[1] == row[2] == "passed" for row in rows)]
    assert not [row for row in rows if row[1] == "passed" and row[2] != "passed"]
