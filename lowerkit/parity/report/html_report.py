"""A check as one HTML page that needs nothing else: no network, no script, pictures as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from lowerkit.parity.bisect.finding import Bisection, StageRow, StepRow
from lowerkit.parity.gates import GATES
from lowerkit.parity.permission import statements
from lowerkit.parity.report.html_style import STYLE
from lowerkit.parity.report.report import Report, Row

_FULL_DB = 200.0
"""The length of a whole bar; equal values fill it."""


def html_report(report: Report) -> str:
    """Returns the page.

    Sections: the verdict per gate; the first op that differs with its cause and reproducer; the waterfall of stages
    (both where the check was bisected); the outputs; every op with source line, cumulative and local SQNR and the
    largest error; what was not compared.
    """
    bisection = report.bisection
    reference = [f"float64 reference: {report.float64_reference}"] if report.float64_reference else []
    sections = [
        _verdicts(report),
        *([] if bisection is None else [_finding(bisection), _waterfall(bisection)]),
        _table("Export against eager", "captures", report.captures, {}),
        _table("Outputs", "outputs", report.outputs, {}),
        _table("Ops, in program order", "ops", report.ops, _local(bisection)),
        _table("Outputs on special values", "hard", report.hard, {}),
        _skipped([*reference, *(f"allowed: {line}" for line in statements(report.allowed)), *report.skipped]),
    ]
    title = f"lowerkit check: {escape(report.source)}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style></head>\n'
        f"<body><main><h1>lowerkit check</h1><p class=source>{escape(report.source)}</p>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _verdicts(report: Report) -> str:
    held = sum(row.verdict.passed for row in report.ops)
    outputs = sum(row.verdict.passed for row in report.outputs)
    state = "pass" if report.passed else "fail"
    word = "holds" if report.passed else "does not hold"
    return (
        '<section id="verdict"><ul class="gates">'
        f'<li class="{state}"><b>Gate A {word}</b><span>the compiled model against eager: {held} of {len(report.ops)} '
        f"ops, {outputs} of {len(report.outputs)} outputs</span></li>"
        '<li class="none"><b>Gate B not run</b><span>quantized against float: this model is compared with itself'
        "</span></li>"
        '<li class="none"><b>Gate C not run</b><span>the task: a check has no data set</span></li></ul></section>'
    )


def _finding(bisection: Bisection) -> str:
    found = bisection.finding
    if found is None and bisection.doubts:
        doubts = "".join(f"<li>{escape(doubt)}</li>" for doubt in bisection.doubts)
        return (
            '<section id="finding" class="card fail"><h2>No op was named</h2><p>Not all is shown to be the same:</p>'
            f"<ul>{doubts}</ul></section>"
        )
    if found is None:
        return (
            '<section id="finding" class="card pass"><h2>No op differs</h2><p>Every stage computes what the captured '
            "graph computes in float64, and every kernel what its region says. What gate A measures is rounding.</p>"
            "</section>"
        )
    distance = "" if found.distance is None else f"{_decibels(found.distance.sqnr_db)} dB"
    largest = "" if found.distance is None else f"{found.distance.max_abs:.3g}"
    facts = [
        ("stage", found.stage),
        ("culprit", found.culprit),
        ("op", found.op),
        ("node", found.node),
        ("source line", found.location or "none"),
        ("ranks", ", ".join(found.ranks)),
        ("shape", "x".join(map(str, found.shape)) or "scalar"),
        ("SQNR to what it should be", distance),
        ("largest error", largest),
        ("cause", found.cause),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts if text)
    details = "".join(f"<li>{escape(line)}</li>" for line in found.details)
    return (
        '<section id="finding" class="card fail"><h2>First op that differs</h2>'
        f"<dl>{rows}</dl>{f'<ul>{details}</ul>' if details else ''}{_reproducer(bisection)}</section>"
    )


def _reproducer(bisection: Bisection) -> str:
    note = f"<p>{escape(bisection.reproducer_note)}.</p>" if bisection.reproducer_note else ""
    if not bisection.reproducer:
        return f"<h3>No reproducer</h3>{note}"
    texts = "".join(
        f"<details{' open' if name == 'reproduce.py' else ''}><summary>{escape(name)} ({len(data):,} bytes)</summary>"
        f"<pre>{escape(data.decode())}</pre></details>"
        if name.endswith((".py", ".mlir"))
        else f"<p class=file>{escape(name)} ({len(data):,} bytes)</p>"
        for name, data in sorted(bisection.reproducer.items(), key=lambda item: (item[0] != "reproduce.py", item[0]))
    )
    return f"<h3>Reproducer</h3>{note}{texts}"


def _waterfall(bisection: Bisection) -> str:
    lost = None if bisection.finding is None else bisection.finding.stage
    width, height, left = 900, 44, 130
    bars: list[str] = []
    for number, row in enumerate(bisection.stages):
        bars.append(_stage_bars(row, number * height, left, width - left - 110, row.stage == lost))
    total = height * len(bisection.stages)
    notes = "".join(f"<li><b>{row.stage}</b>: {escape(row.note)}</li>" for row in bisection.stages if row.note)
    legend = (
        '<p class="legend"><span class="key exact"></span> every float as float64: what is lost here is no rounding '
        '<span class="key own"></span> in the model\'s element types. Both to the graph in float64.</p>'
    )
    return (
        f'<section id="waterfall"><h2>Stages</h2>{legend}<svg viewBox="0 0 {width} {total}" role="img" '
        f'aria-label="decibels by stage">{"".join(bars)}</svg>{f"<ul>{notes}</ul>" if notes else ""}</section>'
    )


def _stage_bars(row: StageRow, top: int, left: int, room: int, lost: bool) -> str:
    mark = " lost" if lost else ""
    parts = [f'<text class="stage{mark}" x="{left - 12}" y="{top + 24}" text-anchor="end">{row.stage}</text>']
    for offset, kind, decibels in ((6, "exact", row.exact), (21, "own", row.own)):
        if decibels is None:
            continue
        length = room * min(max(decibels, 0.0), _FULL_DB) / _FULL_DB
        parts.append(f'<rect class="{kind}{mark}" x="{left}" y="{top + offset}" width="{length:.1f}" height="12"/>')
        parts.append(
            f'<text class="db" x="{left + length + 6:.1f}" y="{top + offset + 10}">{_decibels(decibels)}</text>'
        )
    return "".join(parts)


def _table(title: str, name: str, rows: Sequence[Row], local: dict[str, StepRow]) -> str:
    if not rows:
        return ""
    columns = ["", "value", "kind", "type", "SQNR dB", "local dB", "largest error", "verdict", "source"]
    body = "".join(_row(row, local.get(row.name)) for row in rows)
    head = "".join(f"<th>{column}</th>" for column in columns)
    return (
        f'<section id="{name}"><h2>{title}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _row(row: Row, step: StepRow | None) -> str:
    metrics = row.verdict.to_eager
    shape = "x".join(map(str, row.shape))
    cells = [
        "&#10003;" if row.verdict.passed else "&#10007;",
        escape(f"{row.name} ({row.inputs})" if row.inputs else row.name),
        escape(row.kind),
        f"{row.dtype} {shape}",
        _bar(metrics.sqnr_db, row.dtype),
        "" if step is None else _decibels(step.local),
        f"{metrics.max_abs:.2e}",
        escape(row.verdict.reason),
        escape(row.location),
    ]
    state = "pass" if row.verdict.passed else "fail"
    return f'<tr class="{state}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _bar(decibels: float, dtype: str) -> str:
    """A number with a bar under it; the bar is red below what gate A asks of an output of this type."""
    share = 100 * min(max(decibels, 0.0), _FULL_DB) / _FULL_DB if not math.isnan(decibels) else 0.0
    weak = dtype in GATES and decibels < GATES[dtype].model_sqnr_db
    return f'{_decibels(decibels)}<i class="bar{" weak" if weak else ""}" style="width:{share:.0f}%"></i>'


def _local(bisection: Bisection | None) -> dict[str, StepRow]:
    return {} if bisection is None else {step.node: step for step in bisection.steps}


def _skipped(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<section id="skipped"><h2>Not compared</h2><ul>{items}</ul></section>' if items else ""


def _decibels(value: float) -> str:
    if math.isinf(value):
        return "equal" if value > 0 else "no signal"
    return f"{value:.1f}"
