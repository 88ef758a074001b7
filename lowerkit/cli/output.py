"""What the commands share: results on stdout as a table or as JSON, progress and remarks on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from lowerkit.interrupts import heed_interrupts

JSON_SCHEMA_VERSION = 2

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print remarks of the passes and timings.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print results, warnings and errors only.")


def print_json(schema: str, document: dict[str, Any]) -> None:
    """Prints ``document`` with its schema's name and version; docs/json.md describes each schema."""
    click.echo(json.dumps({"schema": f"lowerkit.{schema}", "version": JSON_SCHEMA_VERSION, **document}, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; columns whose cells are all numbers are set to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row])
    width = None if sys.stdout.isatty() else 160
    # Names and messages may hold square brackets and colons: no markup, no emoji.
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    if title:  # not the table's own: that would be wrapped to the width of the columns
        console.print(title, style="italic", soft_wrap=True)
    console.print(table)


def note(text: str, quiet: bool = False) -> None:
    """Prints a line for the person at the terminal, on stderr."""
    if not quiet:
        click.echo(text, err=True)


@contextmanager
def progress(quiet: bool = False) -> Generator[Callable[[str], None]]:
    """Gives a function that shows what runs now; a spinner on a terminal, nothing where stderr is a file.

    A Ctrl-C that was lost before ends the command there.
    """
    with heed_interrupts() as check:
        if quiet or not sys.stderr.isatty():
            yield lambda _text: check()
            return
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:

            def show(text: str) -> None:
                check()
                status.update(text)

            yield show
