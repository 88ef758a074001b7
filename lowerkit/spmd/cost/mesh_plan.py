"""A program planned for one mesh: what each rank holds and how long a run takes, from the program as it is compiled.

Ranks that differ in their stage of the pipeline alone run different programs; all others are alike, so one rank stands
for each stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lowerkit.passes.shard.plan import MeshPlan
from lowerkit.spmd.cost.machine import DeviceModel
from lowerkit.spmd.cost.memory import RankMemory
from lowerkit.spmd.cost.stage_cost import StageCost
from lowerkit.spmd.cost.stage_runs import Event, StageRun, run_stages
from lowerkit.spmd.mesh import Mesh


@dataclass(frozen=True)
class Traffic:
    """The collectives of one kind along one axis, of the busiest stage.

    Attributes:
        kind, axis, ranks: which.
        count: how many.
        moved: bytes through the link of a rank.
        seconds, waited: of all, one behind the other; how long computation stood still for them.
    """

    kind: str
    axis: str
    ranks: int
    count: int
    moved: float
    seconds: float
    waited: float


@dataclass(frozen=True)
class MeshCost:
    """A program planned for a mesh.

    Attributes:
        mesh: it.
        plan: how the program is split; None for one device.
        memory: of each stage.
        runs: of each stage, in simulated time.
        alike_layers: of the program, that were not planned, since others are like them.
    """

    mesh: Mesh
    plan: MeshPlan | None
    memory: tuple[RankMemory, ...]
    runs: tuple[StageRun, ...]
    alike_layers: int = 0

    @property
    def seconds(self) -> float:
        """Time of a run: until the last stage is done."""
        return max(run.seconds for run in self.runs)

    @property
    def fullest(self) -> int:
        """The stage whose ranks hold the most."""
        return max(range(len(self.memory)), key=lambda stage: self.memory[stage].total)

    @property
    def rank_bytes(self) -> int:
        """The most that a rank holds."""
        return self.memory[self.fullest].total

    @cached_property
    def flops(self) -> int:
        """Operations of a rank of the busiest stage."""
        return max(sum(event.piece.flops for event in run.compute) for run in self.runs)

    @cached_property
    def moved(self) -> int:
        """Bytes between a rank of the busiest stage and its memory."""
        return max(sum(event.piece.moved for event in run.compute) for run in self.runs)

    @cached_property
    def compute_seconds(self) -> float:
        """Time that the busiest stage computes."""
        return max(sum(event.span.seconds for event in run.compute) for run in self.runs)

    @cached_property
    def waited_seconds(self) -> float:
        """Time that the stage that is done last stands still, for collectives and for other stages."""
        run = max(self.runs, key=lambda run: run.seconds)
        return sum(event.span.waited for event in run.exchanges)

    @cached_property
    def traffic(self) -> list[Traffic]:
        """The collectives by kind and axis, each of the stage that spends most on it."""
        found: dict[tuple[str, str], Traffic] = {}
        for run in self.runs:
            for key in Counter(_key(event) for event in run.exchanges):
                events = [event for event in run.exchanges if _key(event) == key]
                own = _traffic(events)
                if key not in found or own.seconds > found[key].seconds:
                    found[key] = own
        return [found[key] for key in sorted(found)]

    def fits(self, device: DeviceModel) -> bool:
        """Whether every rank has the memory that it needs."""
        return self.rank_bytes <= device.memory


def cost_of_mesh(mesh: Mesh, plan: MeshPlan | None, stages: Sequence[StageCost], alike_layers: int = 0) -> MeshCost:
    """Returns what a mesh costs whose stages take ``stages`` each; ``alike_layers`` as in :class:`MeshCost`."""
    axis = plan.stages.axis if plan is not None and plan.stages is not None else ""
    runs = run_stages([stage.pieces for stage in stages], axis)
    return MeshCost(mesh, plan, tuple(stage.memory for stage in stages), tuple(runs), alike_layers)


def _key(event: Event) -> tuple[str, str]:
    exchange = event.piece.exchange
    assert exchange is not None, "exchanges are collectives"
    return exchange.axis, exchange.kind


def _traffic(events: Sequence[Event]) -> Traffic:
    first = events[0].piece.exchange
    assert first is not None, "exchanges are collectives"
    exchanges = [event.piece.exchange for event in events]
    return Traffic(
        first.kind,
        first.axis,
        first.ranks,
        len(events),
        sum(exchange.algorithm.moved for exchange in exchanges if exchange is not None),
        sum(event.piece.seconds for event in events),
        sum(event.span.waited for event in events),
    )
