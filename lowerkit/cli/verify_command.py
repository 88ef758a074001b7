"""`lowerkit verify`: prove an artifact again, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from lowerkit.cli.output import json_option, print_json
from lowerkit.cli.supervise import read_manifest, supervise_devices
from lowerkit.cli.target_options import device_option, program_option
from lowerkit.errors import ParityError, UsageError


@click.command("verify")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--certificate-only",
    is_flag=True,
    help="Prove again that the ranks of a mesh compute what the model does; run nothing, and read no weights.",
)
@program_option
@device_option
@json_option
def command(artifact: Path, certificate_only: bool, target: str | None, device: str | None, as_json: bool) -> None:
    """Check every checksum in ARTIFACT, prove its certificate and run its golden inputs again."""
    from lowerkit.spmd.certificate.binding import check_artifact

    if certificate_only:
        if target is not None or device is not None:
            raise UsageError("LK1004", "--certificate-only runs nothing: it takes neither a target nor a device")
        proved = check_artifact(artifact, required=True)
        assert proved is not None, "it is required"
        if as_json:
            print_json("verify", {"path": str(artifact), "certificate": proved.to_json(), "passed": True})
        else:
            click.echo(f"{artifact}: {proved.render()}")
        return
    supervise_devices(read_manifest(artifact))
    from lowerkit.runtimes.verify import verify_artifact

    report = verify_artifact(artifact, target=target, device=device)
    proved = check_artifact(artifact, required=False, reads_weights=True)
    if as_json:
        certificate = None if proved is None else proved.to_json()
        print_json("verify", {**report.to_json(), "certificate": certificate})
    else:
        click.echo(report.render())
        if proved is not None:
            click.echo(f"  {proved.render()}")
    if not report.passed:
        raise ParityError("LK6001", f"{artifact} does not give its golden outputs on this machine")
