"""The stages of a pipeline and its micro-batches: what is cut, and how often it runs.

Vocabulary
    micro-batch  a part of the batch that goes through the stages while others are in front of it and behind it

Steps: for each number of micro-batches that divides the batch, cut the chain (:mod:`lowerkit.spmd.auto.stages`) by the
time that one of them takes. With times t of the stages, m micro-batches take ``sum(t) + (m - 1) * max(t)``, and a
message each wherever one stage ends. The fastest number is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowerkit.passes.shard.micro_batches import AXIS
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan, StageEntry, StagePlan
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.draft import Draft
from lowerkit.spmd.auto.reasons import amount, duration
from lowerkit.spmd.auto.stages import Chain, balanced, chain_of
from lowerkit.spmd.auto.trial import Trial

_NUMBERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class StageChoice:
    """What was chosen for the axis of a pipeline.

    Attributes:
        plan: of the axis.
        seconds: of a run.
        weight_bytes: of the stage with the most.
        reasons: for people.
    """

    plan: StagePlan
    seconds: float
    weight_bytes: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Cut:
    chain: Chain
    stages: list[int]
    micro_batches: int
    times: list[float]
    held: list[int]
    seconds: float


def choose_stages(axis: MeshAxis, draft: Draft, trial: Trial) -> StageChoice | None:
    """Returns the stages along an axis; None where the model has fewer parts than there are ranks.

    Args:
        axis: of the stages.
        draft: what is cut.
        trial: as it is split along the other axes.
    """
    cuts = [_cut(axis, draft, own, number) for number in _NUMBERS if (own := _micro_batch(trial, number)) is not None]
    best = min((cut for cut in cuts if cut is not None), key=lambda cut: cut.seconds, default=None)
    if best is None:
        return None
    pairs = zip(best.chain.patterns, best.stages, strict=True)
    entries = tuple(StageEntry(pattern, stage) for patterns, stage in pairs for pattern in patterns)
    plan = StagePlan(axis.name, axis.size, entries, best.micro_batches)
    return StageChoice(plan, best.seconds, max(best.held), tuple(_reasons(axis, best)))


def _micro_batch(trial: Trial, number: int) -> Trial | None:
    if number == 1:
        return trial
    machine = replace(trial.machine, mesh={**trial.machine.mesh, AXIS: number})
    return replace(trial, machine=machine).split(ShardingPlan(AXIS, number, (PlanEntry("*", "batch"),)))


def _cut(axis: MeshAxis, draft: Draft, trial: Trial, micro_batches: int) -> _Cut | None:
    chain = chain_of(draft.paths, trial.loads(without=AXIS), trial.counts)
    if len(chain.loads) < axis.size:
        return None
    stages = balanced(chain.loads, axis.size, trial.machine.device.memory)
    times, held = [0.0] * axis.size, [0] * axis.size
    for stage, (seconds, own) in zip(stages, chain.loads, strict=True):
        times[stage] += seconds
        held[stage] += own
    messages = (micro_batches + axis.size - 2) * trial.machine.links.along(axis.name).latency
    return _Cut(chain, stages, micro_batches, times, held, sum(times) + (micro_batches - 1) * max(times) + messages)


def _reasons(axis: MeshAxis, cut: _Cut) -> list[str]:
    lines: list[str] = []
    for stage in range(axis.size):
        units = [patterns[0] for patterns, own in zip(cut.chain.patterns, cut.stages, strict=True) if own == stage]
        named = units[0].removesuffix(".*") + (f" to {units[-1].removesuffix('.*')}" if len(units) > 1 else "")
        lines.append(
            f"{axis.name}: stage {stage} is {named}: {duration(cut.times[stage])} a micro-batch, "
            f"{amount(cut.held[stage])} of weights"
        )
    count = "1 micro-batch" if cut.micro_batches == 1 else f"{cut.micro_batches} micro-batches"
    lines.append(f"{axis.name}: {count}: {duration(cut.seconds)} a run")
    return lines
