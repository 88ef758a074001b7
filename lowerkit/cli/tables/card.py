"""How `lowerkit inspect` shows what kernels take of a card: a table, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table
from lowerkit.errors import ArtifactError, LowerkitError, UsageError
from lowerkit.runtimes.expressions import ExpressionError

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.targets.cuda.model.launches import LaunchReport, ProgramReport

_NAME_WIDTH = 14
_FAMILY_WIDTH = 11
_SHOWN = 20
_COLUMNS = (
    "step", "family", "math", "regs", "spill", "smem", "blocks", "waves", "occ", "GFLOP", "MB", "floor", "us", "x",
    "most",
)  # fmt: skip


def card_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--card`` to a command."""
    return click.option(
        "--card",
        metavar="NAME",
        help="The card that CUDA kernels are shown for: a100, h100, h200, l40s, b200. [default: by the level]",
    )(command)


def read_card(
    program: ProgramSpec, code: Mapping[str, bytes], values: dict[str, int], card: str | None
) -> ProgramReport | None:
    """Returns what a program takes of a card; None where nothing of it runs on one.

    Args:
        program: it.
        code: by entry; empty where no kernel was compiled.
        values: of the symbolic dims.
        card: its name; None is the card of the level.

    Raises:
        UsageError: LK1004, the program has nothing for a card; LK1009, there is no such card.
        RuntimeFault: LK8020, the card runs none of the levels.
        ArtifactError: LK8001, the code is damaged.
    """
    from lowerkit.runtimes.cuda.image import ImageError
    from lowerkit.targets.cuda.model.cards import CARDS
    from lowerkit.targets.cuda.model.launches import DEVICE, default_card, report_program

    if card is not None and card not in CARDS:
        raise UsageError("LK1009", f"--card is {card!r}, expected one of {', '.join(CARDS)}")
    level = next((device.level for device in program.devices if device.name == DEVICE), None)
    entry = program.code.get(DEVICE, "")
    if level is None or entry not in code:
        if card is not None:
            raise UsageError("LK1004", "--card has no effect where no code is for CUDA", hint="leave it out")
        return None
    try:
        chosen = CARDS[card] if card is not None else default_card(level)
        return report_program(program, code[entry], values, chosen)
    except LowerkitError:
        raise
    except (ImageError, ExpressionError, ValueError) as error:
        raise ArtifactError("LK8001", f"the code for CUDA is damaged: {error}") from error


def card_json(report: ProgramReport | None) -> dict[str, Any] | None:
    """Returns a report as a document; seconds as they are."""
    if report is None:
        return None
    return {
        "card": report.card.name,
        "level": report.level,
        "floor_seconds": report.floor,
        "predicted_seconds": report.predicted,
        "terms": report.terms,
        "steps_elsewhere": report.elsewhere,
        "launches": [_launch_json(each) for each in report.launches],
    }


def _launch_json(each: LaunchReport) -> dict[str, Any]:
    prediction = each.prediction
    return {
        "step": each.step,
        "location": each.location,
        "kernel": each.kernel,
        "family": each.family,
        "arithmetic": each.arithmetic,
        "registers": each.registers,
        "spills": each.spills,
        "shared": each.shared,
        "blocks": each.blocks,
        "threads": each.threads,
        "resident": prediction.occupancy.resident,
        "occupancy": prediction.occupancy.share,
        "waves": prediction.occupancy.waves,
        "flops": each.flops,
        "bytes": each.bytes,
        "stated": each.stated,
        "floor_seconds": prediction.floor,
        "predicted_seconds": prediction.total,
        "limit": prediction.limit,
        "terms": prediction.shares(),
    }


def print_card(report: ProgramReport, show_all: bool) -> None:
    """Prints the launches, those that take longest without ``show_all``, and the sums."""
    card = report.card
    launches = report.launches
    ratio = f", {report.predicted / report.floor:.2f} times it" if report.floor else ""
    click.echo(
        f"on {card.title} ({report.level}): {len(launches)} launches, floor {_short(report.floor * 1e6)} us, "
        f"predicted {_short(report.predicted * 1e6)} us{ratio}"
    )
    terms = ", ".join(f"{name} {_short(seconds * 1e6)}" for name, seconds in report.terms.items())
    click.echo(f"us by term: {terms}")
    if report.elsewhere:
        click.echo(f"not counted: {report.elsewhere} steps on the host, copies between host and card included")
    if not show_all:
        launches = sorted(launches, key=lambda each: -each.prediction.total)[:_SHOWN]
    title = "launches" if show_all or len(report.launches) <= _SHOWN else "the twenty longest launches"
    print_table(title, _COLUMNS, _aligned([_row(each) for each in launches]))


def _row(each: LaunchReport) -> list[str]:
    prediction = each.prediction
    return [
        _cut(each.step, _NAME_WIDTH),
        _cut(each.family, _FAMILY_WIDTH),
        each.arithmetic.removeprefix("matrix "),
        str(each.registers or "?"),
        str(each.spills),
        f"{each.shared / 1024:.0f}K",
        str(each.blocks),
        _short(prediction.occupancy.waves),
        f"{prediction.occupancy.share:.0%}",
        _short(each.flops / 1e9),
        _short(each.bytes / 1e6),
        _short(prediction.floor * 1e6),
        _short(prediction.total * 1e6),
        _short(prediction.ratio) if prediction.floor else "-",
        prediction.limit,
    ]


def _aligned(rows: Sequence[list[str]]) -> list[list[str]]:
    """Returns the rows with all columns that hold numbers set to the right."""
    texts = {0, 1, 2, len(_COLUMNS) - 1}
    widths = [
        max(len(row[column]) for row in [list(_COLUMNS), *rows]) if column not in texts else 0
        for column in range(len(_COLUMNS))
    ]
    return [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 2]}.."


def _short(value: float) -> str:
    """A number in five characters or so."""
    if 0 < value < 0.01:
        return "<.01"
    if value >= 99_999.5:
        return f"{value:.0e}".replace("e+0", "e")
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
