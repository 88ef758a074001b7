"""What joins simulated ranks, and how long a run of theirs took: of each rank and of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowerkit.runtimes.arguments import Array


@dataclass(frozen=True)
class Network:
    """What joins the ranks; see :func:`~lowerkit.runtimes.collective.simulation.simulation.simulate`.

    Attributes:
        latency, jitter: seconds.
        bandwidth: bytes per second of each way from one rank to another; 0: no limit.
        loss: probability that a message never arrives.
        death: rank -> how many messages of the run it sends before it dies.
        seed: of jitter and loss.
        timeout: seconds on the clock that ranks wait for each other in one collective.
    """

    latency: float = 0.0
    bandwidth: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    death: Mapping[int, int] = field(default_factory=dict[int, int])
    seed: int = 1
    timeout: float = 300.0


@dataclass(frozen=True)
class StepTime:
    """What one step took in a run.

    Attributes:
        name, kind, location: of the step.
        axis: that a collective is along; empty for other steps.
        seconds: on the clock; of a collective what the rank waited in it.
    """

    name: str
    kind: str
    location: str
    axis: str
    seconds: float


@dataclass(frozen=True)
class RankTime:
    """What one rank's run took; seconds on the clock.

    Attributes:
        seconds: from the moment at which all ranks begin to its own end.
        compute: of its steps.
        waited: the rest: it did not compute.
        messages, bytes: that it sent, headers included.
        steps: all that it ran, in order; of a loop each turn.
    """

    seconds: float
    compute: float
    waited: float
    messages: int
    bytes: int
    steps: Sequence[StepTime]


@dataclass(frozen=True)
class TimedRun:
    """Outputs by rank in the order of the signature, and what each rank's run took."""

    outputs: list[list[Array]]
    ranks: list[RankTime]

    @property
    def seconds(self) -> float:
        """Until the last rank has its outputs."""
        return max(rank.seconds for rank in self.ranks)
