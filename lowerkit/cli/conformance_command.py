"""`lowerkit conformance`: public test suites, case by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import json_option, note, print_json, print_table, progress, quiet_option
from lowerkit.errors import ParityError, UsageError

if TYPE_CHECKING:
    from lowerkit.conformance.results import CaseResult
    from lowerkit.conformance.suite import Case, SuiteReference

RESULTS_BETWEEN_WRITES = 25


@click.group("conformance")
def command() -> None:
    """Run a public test suite; every case in a process that it may bring down."""


def suite_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that all suites share."""
    path = click.Path(path_type=Path, dir_okay=False)
    for option in reversed(
        [
            click.option("--filter", "pattern", default="", help="Run the cases whose name holds this expression."),
            click.option("--workers", default=1, show_default=True, help="Processes at a time."),
            click.option("--time-limit", default=60.0, show_default=True, help="Seconds for one case."),
            click.option("--output", type=path, help="Write the results into this file as they come."),
            click.option("--resume", is_flag=True, help="Take over the results that --output's file holds."),
            click.option("--compare", type=path, help="Print what changed since the run of this result file."),
            click.option("--junit", type=path, help="Write JUnit XML into this file."),
            json_option,
            quiet_option,
        ]
    ):
        function = option(function)
    return function


@command.command("onnx")
@click.option("--kind", help="Only cases of this kind: node, simple, pytorch-converted or pytorch-operator.")
@suite_options
def onnx(kind: str | None, **options: Any) -> None:
    """Run the cases of onnx.backend.test. Exit code 6 if one is wrong, crashed or hung."""
    from lowerkit.conformance.onnx_cases import KINDS, cases_of, read_index, suite_folder
    from lowerkit.conformance.suite import SuiteReference

    if kind is not None and kind not in KINDS:
        raise UsageError("LK1009", f"there is no kind {kind!r}", hint="the kinds are: " + ", ".join(KINDS))
    folder = suite_folder()
    cases = cases_of(read_index(folder), KINDS if kind is None else (kind,))
    run_and_report("onnx", SuiteReference("lowerkit.conformance.onnx_suite", str(folder)), cases, **options)


@command.command("torch")
@click.option("--samples", default=4, show_default=True, help="Samples of each operator, at most.")
@suite_options
def torch(samples: int, **options: Any) -> None:
    """Run the forward samples of PyTorch's operator tests. Exit code 6 if one is wrong, crashed or hung."""
    from lowerkit.conformance.suite import SuiteReference
    from lowerkit.conformance.torch_cases import torch_cases

    if samples < 1:
        raise UsageError("LK1009", f"--samples is {samples}, expected at least 1")
    run_and_report("torch", SuiteReference("lowerkit.conformance.torch_suite"), torch_cases(samples), **options)


def run_and_report(
    name: str,
    suite: SuiteReference,
    cases: Sequence[Case],
    *,
    pattern: str,
    workers: int,
    time_limit: float,
    output: Path | None,
    resume: bool,
    compare: Path | None,
    junit: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Runs the cases of a suite and reports as the options say.

    Raises:
        ParityError: LK6001, a case is wrong, crashed or hung.
    """
    from lowerkit.artifact.atomic_file import replace_file
    from lowerkit.conformance.report import compare_results, junit_xml
    from lowerkit.conformance.results import read_results, summarize, to_json, write_results
    from lowerkit.conformance.runner import RunOptions, run_suite
    from lowerkit.conformance.suite import select_cases

    if resume and output is None:
        raise UsageError("LK1009", "--resume needs a result file", hint="name it with --output")
    before = None if compare is None else read_results(compare)
    known = read_results(output) if resume and output is not None and output.exists() else []
    selected = select_cases(cases, pattern)
    found: list[CaseResult] = []
    with progress(quiet) as show:

        def on_result(result: CaseResult) -> None:
            found.append(result)
            show(f"{len(known) + len(found)}/{len(selected)} {result.name}")
            if output is not None and len(found) % RESULTS_BETWEEN_WRITES == 0:
                write_results(output, [*known, *found])

        try:
            results = run_suite(suite, selected, RunOptions(workers, time_limit), known=known, on_result=on_result)
        except BaseException:
            if output is not None and found:
                write_results(output, [*known, *found])
            raise
    if output is not None:
        write_results(output, results)
    if junit is not None:
        with replace_file(junit) as file:
            file.write(junit_xml(name, results))
    changes = [] if before is None else compare_results(before, results)
    if as_json:
        document: dict[str, Any] = {"suite": name, **to_json(results)}
        if before is not None:
            document["changes"] = [vars(change) for change in changes]
        print_json("conformance", document)
    else:
        _print(name, results, quiet)
        if before is not None:
            rows = [[change.name, change.before or "-", change.after or "-", change.reason] for change in changes]
            print_table(f"{len(changes)} verdicts changed", ["case", "before", "after", "reason"], rows)
    counts = summarize(results)
    failures = counts["wrong"] + counts["crashed"] + counts["hung"]
    if failures:
        raise ParityError("LK6001", f"{failures} of {counts['total']} cases are wrong, crashed or hung")


def _print(name: str, results: Sequence[CaseResult], quiet: bool) -> None:
    from lowerkit.conformance.report import family_rows
    from lowerkit.conformance.results import VERDICTS, summarize

    counts = summarize(results)
    rows = [*family_rows(results), ["all", *counts.values()]]
    print_table(f"{name}: {counts['passed']} of {counts['total']} passed", ["family", "total", *VERDICTS], rows)
    for result in results:
        if result.verdict in ("wrong", "crashed", "hung"):
            note(f"{result.verdict}: {result.name}: {result.reason}", quiet)
