"""All ranks of a program for a mesh in one process: threads, on a network and a clock of their own.

Every run gives the same bits, whatever the machine does, so that golden values can be made and verified without ranks.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.simulation.simulation import Simulation, simulate
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.runtimes.manifest import MAIN_PROGRAM
from lowerkit.runtimes.mesh.fit import ranks_of
from lowerkit.runtimes.session import Integrity, Session

_PATIENCE = 24 * 3600.0
"""Seconds: a rank may compute as long as it likes between two collectives."""

_CAUSES = ("LK8010", "LK8012", "LK8008", "LK8009")
"""Failures of groups, those that come of another one last."""


def run_simulated(
    path: str | os.PathLike[str],
    inputs: Sequence[Any],
    *,
    threads: int = 1,
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> list[list[Array]]:
    """Runs a program for a mesh once in all of its ranks, with the same inputs.

    Args:
        path: the ``.lk`` file.
        inputs: arrays in the order of the signature.
        threads: threads of each rank.
        target, program, device: as for :meth:`Session.load`.

    Returns:
        By rank its outputs, in the order of the signature.

    Raises:
        LowerkitError: as :meth:`Session.load` and :meth:`Session.run`: what the first rank raised that did not fail
            because another one did.
        UsageError: LK8021, the program is for one rank.
    """
    artifact = open_artifact(path)
    try:
        return run_artifact(
            artifact, inputs, threads=threads, integrity="checksum", target=target, program=program, device=device
        )
    finally:
        artifact.close()


def run_artifact(
    artifact: Artifact,
    inputs: Sequence[Any],
    *,
    threads: int = 1,
    integrity: Integrity = "structure",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> list[list[Array]]:
    """Runs a program of an open artifact, as :func:`run_simulated` does; all ranks use one mapping of the weights."""
    with simulated_sessions(artifact, threads, integrity, target, program, device) as (simulation, sessions):
        outcomes = simulation.run(lambda group: sessions[group.rank].run(*inputs))
    results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    if len(results) < len(outcomes):
        raise first_failure(outcomes)
    return results


@contextmanager
def simulated_sessions(
    artifact: Artifact,
    threads: int,
    integrity: Integrity,
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> Generator[tuple[Simulation, list[Session]]]:
    """Loads a program once for each rank of its mesh, for each place its own, and closes their groups at the end.

    Raises:
        UsageError: LK8021, the program is for one rank.
        LowerkitError: as :meth:`Session.load`.
    """
    size = ranks_of(artifact.path, choose_program(artifact.manifest, target, program))
    with simulate(size, patience=_PATIENCE) as simulation:
        yield (
            simulation,
            [
                Session(artifact, threads, "structure" if group.rank else integrity, target, program, device, group)
                for group in simulation.groups
            ],
        )


def first_failure(outcomes: Sequence[object]) -> BaseException:
    """Returns what the first rank raised that failed by itself, not because another rank did.

    Args:
        outcomes: by rank what it returned or raised; at least one raised.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    return min(failures, key=_consequence)  # of equals the first


def _consequence(failure: BaseException) -> int:
    if not isinstance(failure, CollectiveFault):
        return int(isinstance(failure, RankDied))
    return 2 + (_CAUSES.index(failure.code) if failure.code in _CAUSES else len(_CAUSES))
