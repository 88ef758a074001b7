"""Result files, the summary, the comparison of two runs, JUnit XML."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowerkit.conformance.report import Change, compare_results, family_table, junit_xml
from lowerkit.conformance.results import CaseResult, read_results, summarize, to_json, write_results
from lowerkit.errors import InputError

RESULTS = [
    CaseResult("a", "passed", "", 0.5, "Add", ["input 'axes' is compiled in"]),
    CaseResult("b", "rejected", "LK4001 no", 0.25, "Add"),
    CaseResult("c", "wrong", "1 \x00 < 2", 0.125, "Sub"),
    CaseResult("d", "crashed", "signal SIGSEGV", 1.0, "Sub"),
    CaseResult("e", "hung", "no reply", 2.0, "Sub"),
]


def test_summary_counts_every_verdict() -> None:
    assert summarize(RESULTS) == {
        "total": 5,
        "passed": 1,
        "rejected": 1,
        "wrong": 1,
        "crashed": 1,
        "hung": 1,
        "skipped": 0,
    }
    assert summarize([])["total"] == 0
    assert summarize([CaseResult("f", "skipped", "random")])["total"] == 0


def test_a_result_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, RESULTS)
    assert read_results(path) == RESULTS
    assert json.loads(path.read_text()) == to_json(RESULTS)


@pytest.mark.parametrize("text", ["", "{}", '{"cases": [{"name": "a", "verdict": "perfect"}]}', "[1"])
def test_a_foreign_result_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_results(path)
    assert caught.value.code == "LK1002"
    with pytest.raises(InputError):
        read_results(tmp_path / "absent.json")


def test_comparison_lists_what_changed() -> None:
    before = [CaseResult("a", "wrong"), CaseResult("b", "rejected", "another reason"), CaseResult("gone", "passed")]
    changes = compare_results(before, RESULTS[:2] + RESULTS[2:3])
    assert changes == [
        Change("a", "wrong", "passed"),
        Change("c", None, "wrong", "1 \x00 < 2"),
        Change("gone", "passed", None),
    ]


def test_table_has_a_row_for_each_family_and_the_total() -> None:
    assert family_table(RESULTS).splitlines()[2:] == [
        "| Add | 2 | 1 | 1 |  |  |  |  |",
        "| Sub | 3 |  |  | 1 | 1 | 1 |  |",
        "| **all** | 5 | 1 | 1 | 1 | 1 | 1 |  |",
    ]


def test_junit_parses_and_counts() -> None:
    root = ElementTree.fromstring(junit_xml("onnx", RESULTS))
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
        "time": "3.875",
    }
    children = {case.get("name"): [child.tag for child in case] for case in root}
    assert children == {"a": [], "b": ["skipped"], "c": ["failure"], "d": ["error"], "e": ["error"]}
    assert root[2][0].get("message") == "1  < 2"
