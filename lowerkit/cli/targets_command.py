"""`lowerkit targets`: what can be compiled for, and a package to start a target from."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option, note, print_json, print_table, quiet_option
from lowerkit.cli.supervise import supervise_targets


@click.group("targets", invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the targets that packages here bring, their levels, and which of them this machine can run."""
    context.obj = as_json
    if context.invoked_subcommand is None:
        _list(as_json)


def _list(as_json: bool) -> None:
    from lowerkit.errors import LowerkitError
    from lowerkit.targets.asking import ask
    from lowerkit.targets.registry import find_target, known_targets, target_class

    supervise_targets("+".join(known_targets()))
    host = find_target("cpu").level
    rows: list[list[str | bool]] = []
    failures: list[str] = []
    for name in sorted(known_targets()):
        try:
            for level in target_class(name).levels or ("",):
                rows.append(
                    [name, level, ask(find_target(name, level), "runs_here", bool), name == "cpu" and level == host]
                )
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


@command.command("new")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to: a folder that does not exist, or is empty.",
)
@json_option
@quiet_option
@click.pass_obj
def new(json_before: bool, name: str, folder: Path, as_json: bool, quiet: bool) -> None:
    """Write a package that brings the target NAME: products on its device, the rest on the CPU, and tests of it."""
    from lowerkit.targets.new_package import write_package

    files = write_package(name, folder)
    if as_json or json_before:
        print_json("targets_new", {"target": name, "folder": str(folder), "files": [str(path) for path in files]})
    else:
        for path in files:
            click.echo(path)
    note(f"next: pip install -e {folder}\n      lowerkit compile model.onnx --target {name} -o model.lk", quiet)
