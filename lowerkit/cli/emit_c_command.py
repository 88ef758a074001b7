"""`lowerkit emit-c`: an artifact for C programs."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option, print_json
from lowerkit.cli.target_options import program_option
from lowerkit.errors import UsageError


@click.command("emit-c")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder to write to.")
@click.option("--name", help="Prefix of the files and symbols. [default: ARTIFACT's stem]")
@click.option("--maximum", "maxima", multiple=True, metavar="DIM=VALUE", help="The greatest value of a symbolic dim.")
@program_option
@json_option
def command(
    artifact: Path, output: Path, name: str | None, maxima: tuple[str, ...], target: str | None, as_json: bool
) -> None:
    """Write ARTIFACT as NAME.o, NAME.h and example.c: it runs from C, without Python."""
    from lowerkit.c_interface.emit import emit_c
    from lowerkit.c_interface.write_files import write_c
    from lowerkit.runtimes.artifact_reader import open_artifact

    opened = open_artifact(artifact)
    try:
        emitted = emit_c(opened, name, dict(_maximum(text) for text in maxima), target)
    finally:
        opened.close()
    files = write_c(emitted, output)
    document = {
        "object": str(files.object_file),
        "header": str(files.header),
        "example": str(files.example),
        "arena_bytes": emitted.arena_bytes,
    }
    if as_json:
        print_json("emit-c", document)
    else:
        size, arena = len(emitted.object_file), emitted.arena_bytes
        click.echo(f"{files.object_file}: {size / 1e6:.1f} MB, arena {arena / 1e6:.1f} MB")
        click.echo(f"{files.header}, {files.example}")


def _maximum(text: str) -> tuple[str, int]:
    dim, equals, value = text.partition("=")
    if not (dim and equals and value.isdecimal() and value.isascii()):
        raise UsageError("LK1009", f"--maximum {text!r} is not DIM=VALUE", hint="such as --maximum batch=64")
    return dim, int(value)
