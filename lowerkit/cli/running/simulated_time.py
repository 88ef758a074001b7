"""Runs of a mesh in this process on the clock of a simulation: what a run takes, and what its ranks wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.cli.running.request import RunRequest
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.runtimes.mesh.run_time import RankTime, TimedRun
    from lowerkit.runtimes.mesh.step_seconds import StepSeconds


def give_timed(request: RunRequest, program: ProgramSpec, inputs: Sequence[Any], size: int, threads: int) -> None:
    """Runs ``size`` ranks as the options of the simulation say; prints the outputs, and what the run takes.

    Args:
        request: what was asked for.
        program: of the artifact.
        inputs: in the order of its signature.
        size: ranks.
        threads: of each.

    Raises:
        UsageError: LK1009, an option is malformed, or names no step.
        ParityError: LK6003, a rank has another output than rank 0.
        LowerkitError: as :func:`~lowerkit.runtimes.mesh.timed_run.time_run`.
    """
    from lowerkit.cli.running.simulation import check_equal_outputs
    from lowerkit.runtimes.artifact_reader import open_artifact
    from lowerkit.runtimes.mesh.timed_run import time_run

    network = request.simulated.network(size, request.seed, request.rank_deadline)
    steps = request.simulated.step_seconds()
    artifact = open_artifact(request.artifact)
    try:
        _check_patterns(steps, [step.name for entry in artifact.manifest.programs for step in entry.steps])
        timed = time_run(artifact, inputs, network, steps, threads=threads, target=program.label, device=request.device)
    finally:
        artifact.close()
    check_equal_outputs(program.signature.outputs, timed.outputs)
    request.give(program.signature, timed.outputs[0], {"simulated": document(timed)})
    if not request.as_json:
        for rank, time in enumerate(timed.ranks):
            click.echo(line_of(rank, time))


def line_of(rank: int, time: RankTime) -> str:
    """Returns what a rank's run takes, for people."""
    return (
        f"rank {rank}: simulated time {_shown(time.seconds)} a run: compute {_shown(time.compute)}, "
        f"communication waited {_shown(time.waited)}; {time.messages} messages, {time.bytes / 1e6:.3f} MB sent"
    )


def document(timed: TimedRun) -> dict[str, Any]:
    """Returns what a run takes as JSON; times are in seconds."""
    return {
        "seconds": timed.seconds,
        "ranks": [
            {
                "rank": rank,
                "seconds": time.seconds,
                "compute": time.compute,
                "waited": time.waited,
                "messages": time.messages,
                "bytes": time.bytes,
                "steps": [vars(step) for step in time.steps],
            }
            for rank, time in enumerate(timed.ranks)
        ],
    }


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.4g} us"


def _check_patterns(steps: StepSeconds | None, names: Sequence[str]) -> None:
    from lowerkit.runtimes.mesh.step_seconds import GivenSeconds

    if isinstance(steps, GivenSeconds) and (unused := steps.unused(names)):
        raise UsageError(
            "LK1009",
            f"--step-times: {unused[0]!r} names no step",
            hint="`lowerkit run --sim ... --json` lists the steps with their names",
        )
