"""The stages of a pipeline and its micro-batches: what is cut, and how often it runs.

Vocabulary
    micro-batch  a part of the batch that goes through the stages while others are in front of it and behind it

Steps: for each number of micro-batches that divides the batch, cut the chain (:mod:`lowerkit.spmd.auto.stages`) by the
time that one of them takes. With times t of the stages, m micro-batches take ``sum(t) + (m - 1) * max(t)``, and a
message each wherever one stage ends. The fastest number is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowerkit.errors import UnsupportedError
from lowerkit.passes.shard.micro_batches import AXIS, split_batch
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan, StageEntry, StagePlan
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.draft import Draft
from lowerkit.spmd.auto.reasons import amount, duration
from lowerkit.spmd.auto.stages import Chain, balanced, chain_of
from lowerkit.spmd.auto.trial import Trial, copy_of

_NUMBERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class StageChoice:
    """What was chosen for the axis of a pipeline.

    Attributes:
        plan: of the axis.
        seconds: of a run.
        weight_bytes: of the stage with the most, its states among them.
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


def choose_stages(axis: MeshAxis, draft: Draft, trial: Trial, plans: Sequence[ShardingPlan]) -> StageChoice | None:
    """Returns the stages along an axis; None where the model has fewer parts than there are ranks.

    Args:
        axis: of the stages.
        draft: what is cut.
        trial: as it is split along the other axes.
        plans: of these.
    """
    cuts = [
        _cut(axis, draft, (trial, own), number)
        for number in _NUMBERS
        if (own := _micro_batch(draft, trial, plans, number)) is not None
    ]
    best = min((cut for cut in cuts if cut is not None), key=lambda cut: cut.seconds, default=None)
    if best is None:
        return None
    pairs = zip(best.chain.patterns, best.stages, strict=True)
    entries = tuple(StageEntry(pattern, stage) for patterns, stage in pairs for pattern in patterns)
    plan = StagePlan(axis.name, axis.size, entries, best.micro_batches)
    return StageChoice(plan, best.seconds, max(best.held), tuple(_reasons(axis, best)))


def _micro_batch(draft: Draft, trial: Trial, plans: Sequence[ShardingPlan], number: int) -> Trial | None:
    """Returns what a rank does for one of ``number`` micro-batches; None where there cannot be so many."""
    if number == 1:
        return trial
    if not _can_run_apart(draft.trial, plans, number):
        return None
    machine = replace(trial.machine, mesh={**trial.machine.mesh, AXIS: number})
    parts = ShardingPlan(AXIS, number, (PlanEntry("*", "batch"),), keeps_states=False)
    return replace(trial, machine=machine).split(parts)


def _can_run_apart(whole: Trial, plans: Sequence[ShardingPlan], number: int) -> bool:
    """Whether the program runs in micro-batches, and is split as planned then: they come before the axes."""
    module, context = copy_of(whole.module), replace(whole.context, weights=whole.weights.fork())
    try:
        split_batch(module, context, number)
    except UnsupportedError as error:
        if error.code != "LK4007":
            raise
        return False
    own: Trial | None = replace(whole, module=module, context=context)
    for plan in plans:
        own = None if own is None else own.split(ShardingPlan(plan.axis, plan.ranks, plan.entries))
    return own is not None


def _cut(axis: MeshAxis, draft: Draft, trials: tuple[Trial, Trial], micro_batches: int) -> _Cut | None:
    """Cuts the chain by the times of a micro-batch, the second trial, and by the weights of the whole batch."""
    whole, trial = trials
    weights = {path: held for path, (_, held) in whole.loads().items()}
    loads = {path: (seconds, weights.get(path, 0)) for path, (seconds, _) in trial.loads(without=AXIS).items()}
    chain = chain_of(draft.paths, loads, trial.counts)
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
