"""Checks that this machine can execute an artifact's code, before any of it runs."""

from __future__ import annotations

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.manifest import Manifest


def require_machine(manifest: Manifest) -> None:
    """Refuses an artifact for another target or with CPU features that this machine lacks; enables AMX tiles.

    Raises:
        RuntimeFault: LK8005 another target, LK8003 missing CPU features (all are named).
    """
    if manifest.target != "cpu":
        raise RuntimeFault(
            "LK8005",
            f"the artifact was compiled for target {manifest.target!r}, this runtime runs 'cpu'",
            hint="compile the model again with --target cpu",
        )
    needed = {feature.lstrip("+") for feature in manifest.cpu_features}
    missing = sorted(needed - set(_native.cpu_features()))
    if not missing and any(feature.startswith("amx-") for feature in needed) and not _native.request_amx():
        missing = ["amx-tile (Linux refuses the tile registers to this process)"]
    if missing:
        raise RuntimeFault(
            "LK8003",
            f"the artifact was compiled for {manifest.cpu}; this CPU lacks {', '.join(missing)}",
            hint="compile the model again with --cpu host on this machine, or with a lower level: --cpu x86-64-v3",
        )
