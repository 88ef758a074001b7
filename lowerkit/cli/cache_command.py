"""`lowerkit cache`: what the caches on disk hold."""

from __future__ import annotations

import click

from lowerkit.cli.output import json_option, print_json


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete every entry.")
@json_option
def command(clear: bool, as_json: bool) -> None:
    """Show, or with --clear empty, the caches of captured programs and of compiled kernels."""
    from lowerkit.capture.program_cache import ProgramCache
    from lowerkit.targets.cpu.objects.cache import KernelCache

    document: dict[str, dict[str, str | int]] = {}
    for cache in (KernelCache(), ProgramCache()):
        removed = cache.clear() if clear else 0
        info = cache.info()
        document[f"{cache.name}s"] = {
            "folder": str(info.folder),
            "entries": info.entries,
            "bytes": info.total_bytes,
            "removed": removed,
        }
        if not as_json:
            cleared = f" ({removed} removed)" if clear else ""
            click.echo(f"{info.folder}: {info.entries} {cache.name}s, {info.total_bytes / 1e6:.1f} MB{cleared}")
    if as_json:
        print_json("cache", document)
