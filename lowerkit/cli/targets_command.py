"""`lowerkit targets`: what can be compiled for."""

from __future__ import annotations

import click

from lowerkit.cli.output import json_option, note, print_json, print_table


@click.command("targets")
@json_option
def command(as_json: bool) -> None:
    """List the targets that packages here bring, their levels, and which of them this machine can run."""
    from lowerkit.errors import LowerkitError
    from lowerkit.targets.registry import find_target, known_targets, target_class

    host = find_target("cpu").level
    rows: list[list[str | bool]] = []
    failures: list[str] = []
    for name in sorted(known_targets()):
        try:
            for level in target_class(name).levels or ("",):
                rows.append([name, level, find_target(name, level).runs_here(), name == "cpu" and level == host])
        except LowerkitError as error:
            failures.append(error.render())
    for failure in failures:
        note(failure)
    if as_json:
        keys = ("target", "level", "runs_here", "host")
        print_json("targets", {"targets": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        shown = [[target, level, "yes" if runs else "no", "host" if here else ""] for target, level, runs, here in rows]
        print_table("", ["target", "level", "runs here", ""], shown)
