"""`lowerkit targets`: what can be compiled for."""

from __future__ import annotations

import click

from lowerkit.cli.output import json_option, print_json, print_table


@click.command("targets")
@json_option
def command(as_json: bool) -> None:
    """List the targets and the CPU levels, and which of them this machine can run."""
    from lowerkit.targets.cpu.levels import LEVELS, host_features, runs_on_host

    host = host_features().name
    rows = [["cpu", name, runs_on_host(name), name == host] for name in LEVELS]
    if as_json:
        keys = ("target", "level", "runs_here", "host")
        print_json("targets", {"targets": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        shown = [[target, level, "yes" if runs else "no", "host" if here else ""] for target, level, runs, here in rows]
        print_table("", ["target", "level (--cpu)", "runs here", ""], shown)
