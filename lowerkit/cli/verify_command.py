"""`lowerkit verify`: prove an artifact again, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option, print_json
from lowerkit.cli.supervise import read_manifest, supervise_devices
from lowerkit.cli.target_options import device_option, program_option
from lowerkit.errors import ParityError


@click.command("verify")
@click.argument("artifact", type=click.Path(path_type=Path))
@program_option
@device_option
@json_option
def command(artifact: Path, target: str | None, device: str | None, as_json: bool) -> None:
    """Check every checksum in ARTIFACT and run its golden inputs again."""
    supervise_devices(read_manifest(artifact))
    from lowerkit.runtimes.verify import verify_artifact

    report = verify_artifact(artifact, target=target, device=device)
    if as_json:
        print_json("verify", report.to_json())
    else:
        click.echo(report.render())
    if not report.passed:
        raise ParityError("LK6001", f"{artifact} does not give its golden outputs on this machine")
