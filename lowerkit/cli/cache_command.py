"""`lowerkit cache`: what the kernel cache holds."""

from __future__ import annotations

import click

from lowerkit.cli.output import json_option, print_json


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete every entry.")
@json_option
def command(clear: bool, as_json: bool) -> None:
    """Show, or with --clear empty, the cache of compiled kernels."""
    from lowerkit.codegen.cpu.cache import KernelCache

    cache = KernelCache()
    removed = cache.clear() if clear else 0
    info = cache.info()
    if as_json:
        print_json(
            "cache",
            {"folder": str(info.folder), "entries": info.entries, "bytes": info.total_bytes, "removed": removed},
        )
    else:
        click.echo(
            f"{info.folder}: {info.entries} kernels, {info.total_bytes / 1e6:.1f} MB"
            + (f" ({removed} removed)" if clear else "")
        )
