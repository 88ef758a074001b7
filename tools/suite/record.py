"""Runs the whole suite under coverage.py, for what only such a run can say.

1. Writes ``tests/executed.json.xz``: which functions each test executes, for ``tools/test.sh --changed``.
2. Writes ``tests/seconds.json``: how long the tests of each file took, for the order in which workers take them.
3. Prints the lines of the package that only the nightly tier reaches, with a test that does, and fails if there are
   any: a case may be left to the nightly tier only if no line becomes uncovered.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import coverage

from tools.suite import executed

FOLDER = executed.ROOT / "build/recorded"
DATA = FOLDER / "coverage"
PACKAGE = ("lowerkit/", "passes/", "runtimes/")


def run_suite(tests: tuple[str, ...]) -> None:
    """Run the tests under coverage.py; those that fail are recorded as far as they came."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadscope",
        "--no-loadscope-reorder",
        f"--record={FOLDER}",  # one word: pytest takes the path of an existing folder for tests
    ]
    command += [f"--cov={executed.ROOT}", "--cov-config=pyproject.toml", "--cov-context=test", "--cov-report="]
    environment = {**os.environ, "COVERAGE_FILE": str(DATA)}
    # A folder of its own: pytest keeps those of the last three runs, and others may begin in this hour.
    with tempfile.TemporaryDirectory(prefix="lowerkit-record-", ignore_cleanup_errors=True) as temporary:
        own = f"--basetemp={temporary}/tests"
        subprocess.run([*command, own, *tests], cwd=executed.ROOT, env=environment, check=False)
    # Servers that ranks are forked from end after pytest has put the others together.
    if list(FOLDER.glob(f"{DATA.name}.*")):
        combine = [sys.executable, "-m", "coverage", "combine", "--append", "--quiet", str(FOLDER)]
        subprocess.run(combine, cwd=executed.ROOT, env=environment, check=True)


def test_of(context: str) -> str:
    """Return the case that a context belongs to: ``NAME|run`` in its own process, ``NAME (call)`` in a child."""
    own = context.partition("|")[0]
    head, bracket, phase = own.rpartition(" (")
    return head if bracket and phase in ("setup)", "call)", "teardown)") else own


def recorded_lines() -> Iterator[tuple[str, str, list[int]]]:
    """Yield (file from the root, case, lines) of the recording; the case is empty for what no test executed."""
    data = coverage.CoverageData(str(DATA))
    data.read()
    for path in sorted(data.measured_files()):
        file = str(Path(path).resolve().relative_to(executed.ROOT))
        if not (executed.ROOT / file).exists() or Path(file).name.startswith("test_"):
            continue
        cases: defaultdict[str, list[int]] = defaultdict(list)
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                cases[test_of(context)].append(line)
        for case, lines in sorted(cases.items()):
            yield file, case, lines


def write_record() -> None:
    """Write what each test executed."""
    opened: defaultdict[str, set[str]] = defaultdict(set)
    for path in FOLDER.glob("opened-*.json"):
        for test, files in json.loads(path.read_text()).items():
            opened[test].update(files)
    tests: set[str] = set()
    lines: list[tuple[str, str, list[int]]] = []
    for file, case, numbers in recorded_lines():
        if case:
            tests.add(case.partition("[")[0])
            lines.append((file, case.partition("[")[0], numbers))
    executed.write(executed.gather(lines, opened, tests))
    print(f"{executed.RECORD.relative_to(executed.ROOT)}: {len(tests)} tests, {executed.RECORD.stat().st_size:,} bytes")


def write_seconds() -> None:
    """Write how long the tests of each file took."""
    seconds: Counter[str] = Counter()
    for path in FOLDER.glob("seconds-*.json"):
        seconds.update(json.loads(path.read_text()))
    text = json.dumps({file: round(took, 1) for file, took in sorted(seconds.items())}, indent=0)
    (executed.ROOT / "tests/seconds.json").write_text(text + "\n")


def default_cases() -> set[str]:
    """Return the names of the cases that the default tier runs."""
    command = [sys.executable, "-m", "pytest", "--tier", "default", "--collect-only", "-q"]
    text = subprocess.run(command, cwd=executed.ROOT, check=True, capture_output=True, text=True).stdout
    return {line for line in text.splitlines() if "::" in line}


def print_lines_of_nightly_tier(default: set[str]) -> int:
    """Print the lines of the package that no case of the default tier executes, but one of the nightly tier does."""
    count = 0
    by_file: defaultdict[str, dict[int, tuple[bool, str]]] = defaultdict(dict)
    for file, case, lines in recorded_lines():
        if file.startswith(PACKAGE):
            covered = not case or case in default
            for line in lines:
                before = by_file[file].get(line, (False, case))
                by_file[file][line] = (before[0] or covered, before[1])
    for file, lines_of_file in sorted(by_file.items()):
        missing: defaultdict[str, list[int]] = defaultdict(list)
        for line, (covered, case) in sorted(lines_of_file.items()):
            if not covered:
                missing[case].append(line)
        for case, lines in missing.items():
            count += len(lines)
            print(f"{file}:{','.join(map(str, lines))}  {case}")
    print(f"lines that only the nightly tier covers: {count or 'none'}")
    return count


@click.command(help=__doc__)
@click.option("--reuse", is_flag=True, help="read the last recording again instead of running the suite")
@click.argument("tests", nargs=-1)
def main(reuse: bool, tests: tuple[str, ...]) -> None:
    """Record, or read the last recording again; write and print what it says. Of some TESTS, write no record."""
    if not reuse:
        run_suite(tests)
    if not DATA.exists():
        raise click.ClickException("nothing was recorded: no test ran")
    if not tests:
        write_record()
        write_seconds()
    sys.exit(1 if print_lines_of_nightly_tier(default_cases()) else 0)


if __name__ == "__main__":
    main()
