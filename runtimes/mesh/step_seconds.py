"""How long the steps of a program take on the clock of a simulation: as measured, as a model has it, or as given.

Only steps that compute are asked for: what a collective takes follows from its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from lowerkit.errors import UsageError
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, JUMP_KERNEL, Step

_HINT = "a pattern is the name of a step, as `lowerkit run --json` lists them, or has * and ? in it; '*' names all"


class StepSeconds(Protocol):
    """Seconds of the steps of each rank."""

    def of_steps(self, rank: int, steps: Sequence[Step], dims: Mapping[str, int]) -> list[float]:
        """Returns the seconds of each step of a rank's program; 0 of collectives and jumps.

        Args:
            rank: of the mesh.
            steps: of its program.
            dims: the value of each dim of the signature.

        Raises:
            UsageError: LK1009, the times of some steps are not known.
        """
        ...


@dataclass(frozen=True)
class ModelledSeconds:
    """A step computes and moves bytes at once: it takes the longer of the two.

    Attributes:
        flops: operations per second.
        bandwidth: bytes per second.
    """

    flops: float
    bandwidth: float

    def of_steps(self, rank: int, steps: Sequence[Step], dims: Mapping[str, int]) -> list[float]:
        """See :class:`StepSeconds`: from the work of each step as the compiler counted it."""
        return [
            max(evaluate(step.flops, dims) / self.flops, evaluate(step.bytes, dims) / self.bandwidth)
            if computes(step)
            else 0.0
            for step in steps
        ]


@dataclass(frozen=True)
class GivenSeconds:
    """Times by name.

    Attributes:
        by_pattern: seconds of the steps that a pattern names (``*``, ``?``); the first one that names a step decides.
    """

    by_pattern: Mapping[str, float]

    def of_steps(self, rank: int, steps: Sequence[Step], dims: Mapping[str, int]) -> list[float]:
        """See :class:`StepSeconds`."""
        return [self._of_step(rank, number, step) if computes(step) else 0.0 for number, step in enumerate(steps)]

    def unused(self, names: Iterable[str]) -> list[str]:
        """Returns the patterns that name none of the steps called so."""
        known = set(names)
        return [pattern for pattern in self.by_pattern if not any(fnmatchcase(name, pattern) for name in known)]

    def _of_step(self, rank: int, number: int, step: Step) -> float:
        for pattern, seconds in self.by_pattern.items():
            if fnmatchcase(step.name, pattern):
                return seconds
        raise UsageError("LK1009", f"no pattern names step {number} ({step.name!r}) of rank {rank}", hint=_HINT)


@dataclass(frozen=True)
class MeasuredSeconds:
    """Times that were found before.

    Attributes:
        by_rank: seconds of each step.
    """

    by_rank: Sequence[Sequence[float]]

    def of_steps(self, rank: int, steps: Sequence[Step], dims: Mapping[str, int]) -> list[float]:
        """See :class:`StepSeconds`."""
        return list(self.by_rank[rank])


def computes(step: Step) -> bool:
    """Tells whether a step takes time by itself."""
    return step.kernel not in (COLLECTIVE_KERNEL, JUMP_KERNEL)
