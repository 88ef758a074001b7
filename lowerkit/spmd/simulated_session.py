"""A program for a mesh as a session of one process: all of its ranks, simulated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lowerkit.errors import ParityError
from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import ProgramSpec, Signature
from lowerkit.runtimes.mesh.places import place_of, rank_with_place
from lowerkit.runtimes.mesh.simulated import first_failure, simulated_sessions
from lowerkit.runtimes.mesh.state_parts import joined, own_slices
from lowerkit.runtimes.mesh.structs import StateCut
from lowerkit.runtimes.nesting import rebuild_outputs
from lowerkit.runtimes.session import Session

Result = TypeVar("Result")


class SimulatedSession:
    """Runs a program for a mesh in all of its ranks; each run begins with the initial states.

    Attributes:
        program: of the artifact.
        state: the states after the last run, by name, each whole: joined where ranks have parts of it.
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
            ParityError: LK6001, ranks keep different bits of a state that they share.
        """
        return self.on_ranks(lambda session, _rank: session.run(*inputs, **named))

    def on_ranks(self, run: Callable[[Session, int], Result], *, alike: bool = True) -> list[Result]:
        """Calls ``run`` with the session of each rank and its number, each in a thread of its own.

        Args:
            run: what each rank does.
            alike: ranks must keep the same bits of a state that they share.

        Returns:
            By rank what it gave.

        Raises:
            LowerkitError: what the first rank raised by itself.
            ParityError: LK6001, ranks keep different bits of a state that they share.
        """
        arguments = (self._artifact, self._threads, "structure")
        with simulated_sessions(*arguments, device=self._device) as (simulation, sessions):
            outcomes = simulation.run(lambda group: run(sessions[group.rank], group.rank))
            results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
            if len(results) < len(outcomes):
                raise first_failure(outcomes)
            if alike:
                self.state = _states(sessions)
        return results

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once, as :meth:`run`; the arrays that it returns are nested as the model's own results."""
        return rebuild_outputs(self.program.output_tree, self.run(*inputs, **named))


def _states(sessions: Sequence[Session]) -> dict[str, Array]:
    """Returns the states of the model, each joined of the parts of all ranks that use it.

    Raises:
        ParityError: LK6001, two ranks that run one program give different bits for one part.
    """
    mesh = sessions[0].program.mesh
    parts: dict[str, list[tuple[dict[str, int], Array]]] = {}
    first: dict[tuple[str, str, str], tuple[int, bytes]] = {}
    cuts: dict[str, list[StateCut]] = {}
    for rank, session in enumerate(sessions):
        program, place = session.program, place_of(mesh, rank)
        cuts |= program.state_cuts
        for name, value in session.state.items():
            own = own_slices(value.shape, cuts.get(name, []), mesh, place)
            other, bits = first.setdefault((name, str(own), str(program.place)), (rank, value.tobytes()))
            if bits != value.tobytes():
                both = " and ".join(rank_with_place(mesh, each) for each in (other, rank))
                raise ParityError("LK6001", f"{both} of the mesh give different bits in the state {name!r}")
            parts.setdefault(name, []).append((place, value))
    return {name: joined(own, cuts.get(name, []), mesh) for name, own in parts.items()}
