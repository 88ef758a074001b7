"""`lowerkit comm`: looking into groups of ranks, and tuning them to a machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lowerkit.cli.output import json_option, note, print_json, print_table, progress, quiet_option
from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.tuning.search import Trial


@click.group("comm")
def command() -> None:
    """Trace, tune and describe the collectives between ranks."""


@command.command("trace")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--top", default=10, show_default=True, help="Operations to show, those with the longest waits.")
@click.option(
    "--chrome", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace for Perfetto into this file."
)
@json_option
@quiet_option
def trace(files: tuple[Path, ...], top: int, chrome: Path | None, as_json: bool, quiet: bool) -> None:
    """Merge the flight records FILE... of a group's ranks: who waited for whom, and where the ranks parted."""
    from lowerkit.cli.tables.comm import print_trace, to_json
    from lowerkit.runtimes.collective.tracing.chrome_trace import chrome_trace
    from lowerkit.runtimes.collective.tracing.flight_record_file import read_flight_record
    from lowerkit.runtimes.collective.tracing.trace import group_records

    if top < 0:
        raise UsageError("LK1009", f"--top is {top}, expected at least 0")
    traces = group_records(read_flight_record(path) for path in files)
    if chrome is not None:
        try:
            chrome.write_text(json.dumps(chrome_trace(traces)) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError("LK1005", f"{chrome} cannot be written: {error.strerror}") from error
        note(f"wrote {chrome}; ui.perfetto.dev opens it", quiet)
    if as_json:
        print_json("comm_trace", {"groups": [to_json(one, top) for one in traces]})
        return
    for one in traces:
        print_trace(one, top)


@command.command("tune")
@click.option("--ranks", default="2", show_default=True, help="Comma-separated numbers of local ranks to tune for.")
@click.option("--seconds", default=5.0, show_default=True, help="How long each comparison is measured, at least.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. [default: this machine's, in the cache]",
)
@click.option("--dry-run", is_flag=True, help="Write no file.")
@json_option
@quiet_option
def tune(ranks: str, seconds: float, output: Path | None, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Measure all_reduce between local processes and write the table that groups may be given."""
    from lowerkit.runtimes.collective.tuning.measure import measure_here
    from lowerkit.runtimes.collective.tuning.search import chosen_seconds, search
    from lowerkit.runtimes.collective.tuning.table import Tuning, TuningTable, default_path, processor_name, processors

    try:
        counts = sorted({int(word) for word in ranks.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 2:
        raise UsageError("LK1009", f"--ranks is {ranks!r}, expected numbers from 2 on, such as 2,4")
    if not seconds >= 0:
        raise UsageError("LK1009", f"--seconds is {seconds}, expected at least 0")
    found: dict[int, Tuning] = {}
    trials: dict[int, list[Trial]] = {}
    with progress(quiet) as show:
        for count in counts:

            def measure(candidates: Sequence[Tuning], local: int, sizes: Sequence[int]) -> list[dict[int, float]]:
                show(f"{local} ranks: {len(candidates)} candidates at {len(sizes)} sizes")
                return measure_here(candidates, local, sizes, seconds)

            found[count], trials[count] = search(measure, count)
    path = output or default_path()
    if not dry_run:
        seconds_of = {count: chosen_seconds(tried) for count, tried in trials.items()}
        TuningTable(processor_name(), processors(), found, seconds=seconds_of).save(path)
    if as_json:
        tables = {
            str(count): {"tuning": found[count].to_json(), "trials": [trial.to_json() for trial in trials[count]]}
            for count in counts
        }
        file = None if dry_run else str(path)
        document = {"processor": processor_name(), "processors": processors(), "file": file, "ranks": tables}
        print_json("comm_tune", document)
        return
    for count in counts:
        rows = [
            [
                trial.field, _value(trial), trial.ratio, "taken" if trial.chosen else "",
                ", ".join(f"{size}: {seconds * 1e6:.1f}" for size, seconds in trial.medians.items()),
            ]
            for trial in trials[count]
        ]  # fmt: skip
        print_table(f"{count} ranks", ["field", "value", "time / built-in", "", "bytes: median us"], rows)
    click.echo("nothing was written (--dry-run)" if dry_run else f"wrote {path}")


def _value(trial: Trial) -> str:
    if trial.field == "all" and trial.value:
        return "as found"
    return str(trial.value or "built-in")


@command.command("info")
@json_option
def info(as_json: bool) -> None:
    """Show what this host offers to groups of ranks."""
    from lowerkit.errors import InputError
    from lowerkit.runtimes.collective.available_memory import available_bytes
    from lowerkit.runtimes.collective.rendezvous.host import host_identity
    from lowerkit.runtimes.collective.tuning.table import TuningTable, default_path, processor_name, processors

    table = None
    reason = f"none at {default_path()}"
    if default_path().exists():
        try:
            table = TuningTable.load()
            reason = (
                f"{table.source}, for {', '.join(map(str, sorted(table.ranks)))} ranks (groups take it when told to)"
            )
        except (InputError, UsageError) as error:
            reason = f"not usable: {error.message}"
    tuned = {} if table is None else {str(count): one.to_json() for count, one in table.ranks.items()}
    document = {
        "processor": processor_name(),
        "processors": processors(),
        "available_bytes": available_bytes(),
        "host": host_identity(),
        "transports": ["shared memory (memfd)", "tcp"],
        "tuning": reason,
        "tuned": tuned,
    }
    if as_json:
        print_json("comm_info", document)
        return
    shown = {key: value for key, value in document.items() if key != "tuned"}
    shown["transports"] = "shared memory (memfd), tcp; other processes' memory (CMA) is never read"
    print_table("", ["host", ""], [[key, str(value)] for key, value in shown.items()])
