"""A program for a mesh as a session of one process: all of its ranks, simulated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lowerkit.errors import ParityError
from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import ProgramSpec, Signature
from lowerkit.runtimes.mesh.places import rank_with_place
from lowerkit.runtimes.mesh.simulated import first_failure, simulated_sessions
from lowerkit.runtimes.nesting import rebuild_outputs
from lowerkit.runtimes.session import Session


class SimulatedSession:
    """Runs a program for a mesh in all of its ranks; each run begins with the initial states.

    Attributes:
        program: of the artifact.
        state: the states after the last run, by name: each from the first rank whose program uses it.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None, device: str | None) -> None:
        """Opens the artifact.

        Raises:
            ArtifactError: as :func:`lowerkit.runtimes.session.load`.
        """
        self._artifact = open_artifact(path)
        self._threads, self._device = threads or 1, device
        self.program: ProgramSpec = self._artifact.manifest.programs[0]
        self.state: Mapping[str, Array] = {}

    @property
    def signature(self) -> Signature:
        """Of the model."""
        return self.program.signature

    def reset(self) -> None:
        """Does nothing: each run begins with the initial states."""

    def run(self, *inputs: Any, **named: Any) -> list[Array]:
        """Runs the model once on all ranks; returns what each of them gave.

        Raises:
            LowerkitError: what the first rank raised by itself.
            ParityError: LK6001, two ranks gave different bits.
        """
        results = self.run_ranks(*inputs, **named)
        for rank, other in enumerate(results):
            for spec, one, two in zip(self.signature.outputs, results[0], other, strict=True):
                if one.tobytes() != two.tobytes():
                    both = " and ".join(rank_with_place(self.program.mesh, each) for each in (0, rank))
                    raise ParityError("LK6001", f"{both} of the mesh give different bits in {spec.name!r}")
        return results[0]

    def run_ranks(self, *inputs: Any, **named: Any) -> list[list[Array]]:
        """Runs the model once on all ranks; returns by rank what it gave, whether the others gave the same or not.

        Raises:
            LowerkitError: what the first rank raised by itself.
        """
        arguments = (self._artifact, self._threads, "structure")
        with simulated_sessions(*arguments, device=self._device) as (simulation, sessions):
            outcomes = simulation.run(lambda group: sessions[group.rank].run(*inputs, **named))
            self.state = _states(sessions)
        results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        if len(results) < len(outcomes):
            raise first_failure(outcomes)
        return results

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once, as :meth:`run`; the arrays that it returns are nested as the model's own results."""
        return rebuild_outputs(self.program.output_tree, self.run(*inputs, **named))


def _states(sessions: Sequence[Session]) -> dict[str, Array]:
    """Returns the states of all ranks; where ranks run programs of their own, that of one which uses it."""
    found: dict[str, Array] = {}
    unused: dict[str, Array] = {}
    for session in sessions:
        program = session.program
        used = {buffer.index for buffer in program.buffers if buffer.kind == "state"}
        names = [spec.name for spec in program.signature.states]
        if all(name in found for name in names):
            continue
        values = session.state
        for number, name in enumerate(names):
            (found if number in used else unused).setdefault(name, values[name])
    return {**unused, **found}
