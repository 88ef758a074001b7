"""`lowerkit check`: gate A for a model, op by op and as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from lowerkit.cli.model_options import capture_model, model_options, refuse_given
from lowerkit.cli.output import json_option, note, print_json, print_table, progress, quiet_option, verbose_option
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.target_options import (
    allow_option,
    device_option,
    invariant_option,
    mesh_option,
    shard_option,
    target_option,
)
from lowerkit.errors import ParityError
from lowerkit.parity.bisect.finding import Bisection
from lowerkit.parity.check import check_program
from lowerkit.parity.permission import statements
from lowerkit.parity.report.report import ONE_DEVICE, Report, Row
from lowerkit.program.program import Program


@click.command("check")
@model_options
@target_option
@allow_option
@device_option
@mesh_option
@invariant_option
@shard_option
@click.option("--dtype", type=click.Choice(["f32", "bf16", "f16"]), help="Convert the model's floating types first.")
@click.option("--outputs-only", is_flag=True, help="Compare the outputs, not every op.")
@click.option("--hard", is_flag=True, help="Compare on NaN, infinities, denormals and other special values too.")
@click.option("--ops", "ops_alone", is_flag=True, help="Compare each distinct op alone with eager, and nothing else.")
@click.option("--bisect", is_flag=True, help="Search every stage for the first op that computes something else.")
@click.option(
    "--reproducer",
    type=click.Path(path_type=Path),
    default=Path("lowerkit-reproducer"),
    show_default=True,
    metavar="DIR",
    help="Where --bisect writes what shows the op again.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as one HTML page too.")
@json_option
@verbose_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    target: str,
    allow: tuple[str, ...],
    device: str | None,
    mesh: str | None,
    invariant: bool,
    plan: Path | None,
    dtype: str | None,
    outputs_only: bool,
    hard: bool,
    ops_alone: bool,
    bisect: bool,
    reproducer: Path,
    html: Path | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Compile MODEL in memory and compare it with eager; exit code 6 when gate A does not hold."""
    supervise_targets(target)
    if not bisect:
        refuse_given(["reproducer"], "without --bisect, which writes it")
    if ops_alone:
        given = ("mesh", "plan", "invariant", "hard", "bisect", "outputs_only", "html", "allow")
        refuse_given(given, "with --ops, which compiles nothing")
        check_ops(capture_model(model, inputs, dynamic, seed, dtype), as_json=as_json, quiet=quiet)
        return
    from lowerkit.spmd.sharding import sharding_of

    with progress(quiet) as show:
        show("capturing")
        program = capture_model(model, inputs, dynamic, seed, dtype)
        sharding = sharding_of(mesh, plan, program, invariant=invariant, target=target)
        report = check_program(
            program,
            target=target,
            device=device,
            per_op=not outputs_only,
            bisect=bisect,
            hard=hard,
            allow=allow,
            sharding=sharding,
            on_progress=show,
        )
    if as_json:
        print_json("check", report.to_json())
    else:
        if report.integers:
            print_integers(report, verbose)
        print_report(report, verbose)
    if report.mesh:
        note(f"simulated ranks, equal bits: {report.mesh}", quiet)
    if report.float64_reference:
        note(f"float64 reference: {report.float64_reference}", quiet)
    for line in statements(report.allowed):
        note(f"allowed: {line}", quiet)
    for line in report.skipped:
        note(f"not compared: {line}", quiet)
    if html is not None:
        write_page(report, html)
    hint = "ops before it in the table agree with eager"
    if report.bisection is not None:
        hint = describe(report.bisection, reproducer, quiet=quiet or as_json) or hint
    wrong = report.first_integer_failure
    if wrong is not None:
        raise ParityError(
            "LK6001",
            f"{wrong.name} fails: {wrong.verdict}",
            op=wrong.kind,
            location=wrong.location or None,
            hint="it was given what the regions before it gave: the error is its own",
        )
    failure = report.first_failure
    if failure is None and report.bisection is not None and report.bisection.finding is not None:
        found = report.bisection.finding
        held = f"the run ended ({report.ended})" if report.ended else "gate A holds on these inputs, but"
        raise ParityError(
            "LK6001",
            f"{held}{':' if report.ended else ''} {found.sentence}: {found.cause}",
            op=found.op,
            location=found.location or None,
            hint=hint,
        )
    if failure is not None:
        raise ParityError(
            "LK6001",
            _sentence(failure),
            op=f"{failure.kind} ({failure.dtype}, {'x'.join(map(str, failure.shape))})",
            location=failure.location or None,
            hint=hint,
        )


def check_ops(program: Program, *, as_json: bool, quiet: bool) -> None:
    """Prints a verdict for each distinct op of a captured program.

    Raises:
        ParityError: LK6005, an op differs from eager, of an ONNX model from ONNX Runtime.
    """
    from lowerkit.parity.witness.record import owner_of, require_alike, witness_ops_in
    from lowerkit.parity.witness.verdicts import VerdictCache

    cache, owner = VerdictCache(), owner_of(program)
    with progress(quiet) as show:
        found = witness_ops_in(program, cache, show)
    cache.trim()
    if as_json:
        print_json("check_ops", {"source": program.source, "witness": [msgspec.to_builtins(each) for each in found]})
    else:
        kinds = ("values", "extents", "special")
        rows = [
            [each.name, each.operands, *(each.cases.get(kind, 0) for kind in kinds), each.verdict, *each.places[:1]]
            for each in found
        ]
        compared = sum(each.verdict in ("same", "known") for each in found)
        title = f"{program.source}: {compared} of {len(found)} distinct ops were compared with {owner}"
        print_table(title, ["op", "arguments", *kinds, "verdict", "first at"], rows)
    for each in found:
        if each.reason:
            note(f"{each.name}({each.operands}): {each.verdict}: {each.reason}", quiet)
    require_alike(found, owner)


def _sentence(row: Row) -> str:
    """Says what differs: the export is not lowerkit's, and its user has to look elsewhere."""
    at = f" ({row.inputs})" if row.inputs else ""
    if row.kind == "export":
        return f"the export differs from eager at {row.name}{at}: {row.verdict.reason}"
    if row.kind == "capture":
        return f"what was captured differs from the export at {row.name}{at}: {row.verdict.reason}"
    other = ONE_DEVICE if row.kind == ONE_DEVICE else "eager"
    return f"{row.name} differs from {other}{at}: {row.verdict.reason}"


def write_page(report: Report, path: Path) -> None:
    """Writes the HTML page; a file that is there is replaced only when the new one is complete.

    Raises:
        InputError: LK1005, the path cannot be written.
        ResourceError: LK7001, the disk is full.
    """
    from lowerkit.artifact.atomic_file import replace_file
    from lowerkit.parity.report.html_report import html_report

    with replace_file(path) as file:
        file.write(html_report(report).encode())


def describe(bisection: Bisection, folder: Path, *, quiet: bool) -> str | None:
    """Prints the waterfall and the finding, writes the reproducer; returns the hint for a failed gate.

    Raises:
        InputError: LK1005, the reproducer cannot be written.
        ResourceError: LK7001, the disk is full.
    """
    if not quiet:
        rows = [[row.stage, _decibels(row.exact), _decibels(row.own), row.note] for row in bisection.stages]
        print_table("stages, to the graph in float64", ["stage", "float64 dB", "own types dB", ""], rows)
    found = bisection.finding
    if found is None:
        note(f"bisection: {bisection.verdict}", quiet)
        return None
    note(f"bisection: {bisection.verdict}\n  cause: {found.cause}", quiet)
    for line in found.details:
        note(f"  {line}", quiet)
    if not bisection.reproducer:
        note(f"  no reproducer: {bisection.reproducer_note}", quiet)
        return found.sentence
    from lowerkit.parity.bisect.reproducer import write_reproducer

    write_reproducer(bisection.reproducer, folder)
    note(f"  reproducer: python {folder / 'reproduce.py'} ({bisection.reproducer_note})", quiet)
    return f"{found.sentence}; repeat it with python {folder / 'reproduce.py'}"


def _decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def print_report(report: Report, verbose: bool) -> None:
    """Prints the table: all failing ops, the ten nearest to failing (all with ``verbose``), and every output."""
    ops = report.ops
    if not verbose:
        worst = sorted((row for row in ops if row.verdict.passed), key=lambda row: row.verdict.to_eager.sqnr_db)[:10]
        ops = [row for row in ops if not row.verdict.passed or row in worst]
    columns = ["value", "kind", "dtype", "shape", "SQNR dB", "max error", "verdict", "source"]
    captures = [row for row in report.captures if verbose or not row.verdict.passed]
    hard = [row for row in report.hard if verbose or not row.verdict.passed]
    print_table(_title(report), columns, [_cells(row) for row in [*captures, *ops, *report.outputs, *hard]])


def _title(report: Report) -> str:
    """Says what was compared and how much of it holds; what was not compared is not called right."""
    parts = [_share(report.ops, "ops hold gate A")] if report.ops else []
    if not report.ops:
        outputs = [row for row in report.outputs if row.kind != ONE_DEVICE]
        parts.append(f"no op was compared, {_share(outputs, 'outputs hold')}")
        if outputs != report.outputs:
            ranks = [row for row in report.outputs if row.kind == ONE_DEVICE]
            parts.append(_share(ranks, "outputs of the ranks are those of one device"))
    if len(report.sizes) > 1:
        parts.append(f"at {len(report.sizes)} sizes ({'; '.join(report.sizes)})")
    if report.captures:
        parts.append(_share(report.captures, "outputs of the export are eager's"))
    if report.hard:
        parts.append(_share(report.hard, "outputs on special values are eager's"))
    if report.allowed:
        needing = sum(row.verdict.permitted is not None for row in (*report.ops, *report.outputs, *report.hard))
        parts.append(f"{needing} of them by what --allow {' --allow '.join(report.allowed)} grants")
    return f"{report.source}: {', '.join(parts)}"


def _share(rows: Sequence[Row], text: str) -> str:
    return f"{sum(row.verdict.passed for row in rows)} of {len(rows)} {text}"


def print_integers(report: Report, verbose: bool) -> None:
    """Prints what of a quantized model fails or differs at all; everything with ``verbose``."""
    rows, owners = report.integers, report.owners
    exact = [row for row in rows if row.exact]
    title = (
        f"{report.source}: {sum(row.passed for row in rows)} of {len(rows)} regions hold; "
        f"{sum(row.differing == 0 for row in exact)} of {len(exact)} exact ones give the interpreter's bits"
    )
    shown = [row for row in rows if verbose or not row.passed or row.differing]
    columns = ["region", "kind", "elements", "differ", "LSB", "verdict", "source"]
    cells = [[row.name, row.kind, row.elements, row.differing, row.largest, row.verdict, row.location] for row in shown]
    print_table(title, columns, cells)
    title = f"{sum(row.passed for row in owners)} of {len(owners)} ops are the owner's within 1 LSB on 0.1 %"
    differing = [row for row in owners if verbose or row.differing]
    columns = ["op", "kind", "elements", "differ", "LSB", "verdict", "source"]
    cells = [
        [row.name, row.kind, row.elements, row.differing, row.largest, row.verdict, row.location] for row in differing
    ]
    print_table(title, columns, cells)


def _cells(row: Row) -> list[object]:
    metrics = row.verdict.to_eager
    verdict = ("ok: " if row.verdict.passed else "FAIL: ") + row.verdict.reason
    shape = "x".join(map(str, row.shape))
    return [
        f"{row.name} ({row.inputs})" if row.inputs else row.name,
        row.kind,
        row.dtype,
        shape,
        f"{metrics.sqnr_db:.1f}",
        f"{metrics.max_abs:.2e}",
        verdict,
        row.location,
    ]
