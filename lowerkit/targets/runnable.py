"""Which of its targets a program needs here, and this machine cannot run."""

from __future__ import annotations

from lowerkit.runtimes.device import stand_ins
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.targets.asking import ask
from lowerkit.targets.spec import TargetSpec
from lowerkit.targets.target import Target


def targets_not_here(program: ProgramSpec, spec: TargetSpec, device: str | None) -> list[Target]:
    """Returns the targets whose code this machine cannot run, where ``device`` takes the place of one of them.

    Raises:
        UsageError: LK1009, ``device`` is none, or the program has none whose place it could take.
        CodegenError: LK5003, a package fails.
    """
    accelerators = {target.name: target for target in spec.accelerator_targets}
    hosts = {target.level: target for target in spec.host_targets}
    names = [each.name for each in program.devices]
    others = stand_ins(device, names)
    used = [*(accelerators[name] for name in names if name not in others), hosts[program.level]]
    return [target for target in used if not ask(target, "runs_here", bool)]
