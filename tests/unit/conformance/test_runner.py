"""The runner charges each case with what it did, and no other case with it."""

from __future__ import annotations

import pytest

from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference, select_cases
from lowerkit.errors import ResourceError, UsageError
from tests.support.planted_suite import CASES

SUITE = SuiteReference("tests.support.planted_suite")
OPTIONS = RunOptions(workers=2, time_limit=3.0, memory_limit=4 << 30)


@pytest.fixture(scope="module")
def results() -> dict[str, CaseResult]:
    return {result.name: result for result in run_suite(SUITE, CASES, OPTIONS)}


def test_every_case_has_its_verdict(results: dict[str, CaseResult]) -> None:
    assert {name: result.verdict for name, result in results.items()} == {
        "pass": "passed",
        "reject": "rejected",
        "wrong": "wrong",
        "segfault": "crashed",
        "exit": "crashed",
        "internal": "crashed",
        "raise": "crashed",
        "hang": "hung",
        "memory": "crashed",
        "print": "passed",
        "last": "passed",
    }


def test_reasons_say_what_happened(results: dict[str, CaseResult]) -> None:
    assert results["reject"].reason == "LK4001 1 op is not supported; aten.foo"
    assert results["wrong"].reason == "3 elements differ"
    assert "SIGSEGV" in results["segfault"].reason
    assert "exit code 9" in results["exit"].reason and "LLVM ERROR: planted" in results["exit"].reason
    assert "KeyError" in results["raise"].reason
    assert "3 seconds" in results["hang"].reason
    assert results["memory"].reason == "out of memory"
    assert results["hang"].seconds < 120


def test_results_come_in_the_order_of_the_cases(results: dict[str, CaseResult]) -> None:
    assert list(results) == [case.name for case in CASES]
    assert all(result.family == "planted" for result in results.values())


def test_a_process_serves_many_cases_and_known_results_are_not_run_again() -> None:
    seen: list[CaseResult] = []
    known = [CaseResult("old", "wrong", "from before"), CaseResult("not asked for", "passed")]
    cases = [Case("a"), Case("old"), Case("b")]
    results = run_suite(SUITE, cases, RunOptions(), known=known, on_result=seen.append)
    assert [result.verdict for result in results] == ["passed", "wrong", "passed"]
    assert [result.name for result in seen] == ["a", "b"]
    assert results[0].notes == results[2].notes
    assert results[1] is known[0]


def test_a_suite_that_cannot_start_is_an_error_and_no_verdict() -> None:
    with pytest.raises(ResourceError, match="planted: no suite") as caught:
        run_suite(SuiteReference("tests.support.planted_suite", "broken"), CASES, RunOptions())
    assert caught.value.code == "LK7003"


def test_an_exception_of_the_caller_ends_the_run() -> None:
    def stop(result: CaseResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(SUITE, [Case("pass"), Case("hang")], RunOptions(time_limit=100.0), on_result=stop)


@pytest.mark.parametrize("options", [RunOptions(workers=0), RunOptions(time_limit=0.0), RunOptions(time_limit=-1)])
def test_bad_options_are_refused(options: RunOptions) -> None:
    with pytest.raises(UsageError):
        run_suite(SUITE, [], options)


def test_cases_are_selected_by_expression() -> None:
    assert [case.name for case in select_cases(CASES, "^r")] == ["reject", "raise"]
    assert select_cases(CASES, "") == CASES
    with pytest.raises(UsageError, match="no regular expression"):
        select_cases(CASES, "(")
