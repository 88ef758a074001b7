"""What a plan came to, in a line for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.passes.shard.plan import MeshPlan
from lowerkit.runtimes.manifest import ITEM_SIZES, ProgramSpec, TensorSpec
from lowerkit.runtimes.mesh.state_parts import whole_shape
from lowerkit.runtimes.mesh.structs import StateCut
from lowerkit.spmd.plan_file import entries_of

_SHOWN = 3


@dataclass(frozen=True)
class ShardingSummary:
    """What the ranks of a mesh run.

    Attributes:
        mesh: as a user writes it.
        ranks: how many there are.
        split, whole: modules of the products and tables that are split; of products that every rank computes whole.
        collectives: how many of each kind a rank takes part in; with stages, that with the most.
        rank_bytes, stored_bytes: weights that one rank reads, the most of all stages; and those in the artifact.
        rank_state_bytes, state_bytes: states of one rank, the most of all stages; and those of the model.
        plan: by axis, as a file of it holds it.
        reasons: why the plan is as it is, where it was chosen.
        price: by which part of its time the same bits on every mesh make the program longer, by the cost model; None
            where they are not asked for.
    """

    mesh: str
    ranks: int
    split: tuple[str, ...]
    whole: tuple[str, ...]
    collectives: dict[str, int]
    rank_bytes: int
    stored_bytes: int
    rank_state_bytes: int
    state_bytes: int
    plan: dict[str, dict[str, Any]]
    reasons: tuple[str, ...] = ()
    price: float | None = None

    def render(self) -> str:
        """Returns the line for people."""
        total = len(self.split) + len(self.whole)
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items()) or "no collective"
        line = (
            f"{self.mesh}: {len(self.split)} of {total} products and tables split, {kinds}; "
            f"{self.rank_bytes / 1e6:.2f} MB of weights a rank, {self.stored_bytes / 1e6:.2f} MB stored"
        )
        if self.state_bytes:
            line += f"; {self.rank_state_bytes / 1e6:.2f} MB of states a rank, {self.state_bytes / 1e6:.2f} MB in all"
        if self.price is not None:
            line += f"; the same bits on every mesh, for about {self.price:.1%} more time"
        if not self.whole or not self.split:
            return line
        named = ", ".join(path or "the model" for path in self.whole[:_SHOWN])
        return f"{line}; whole on every rank: {named}{', ...' if len(self.whole) > _SHOWN else ''}"

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return {
            "mesh": self.mesh,
            "ranks": self.ranks,
            "split": list(self.split),
            "whole": list(self.whole),
            "collectives": self.collectives,
            "rank_bytes": self.rank_bytes,
            "stored_bytes": self.stored_bytes,
            "rank_state_bytes": self.rank_state_bytes,
            "state_bytes": self.state_bytes,
            "plan": self.plan,
            "reasons": list(self.reasons),
            "invariant_price": self.price,
        }


def summary_of(plan: MeshPlan, programs: Sequence[ProgramSpec], stored: dict[str, int]) -> ShardingSummary:
    """Returns the summary of a compiled program; ``stored`` is the bytes of each weight of the artifact."""
    sizes = dict(plan.mesh)
    first = programs[0]
    stages = [each for each in programs if (each.name, each.label) == (first.name, first.label)]
    split = dict.fromkeys(path for axis in plan.axes for path, _ in axis.report.split)
    whole = dict.fromkeys(path for axis in plan.axes for path in axis.report.whole if path not in split)
    counts = [_collectives(stage) for stage in stages]
    states = [(spec, stage.state_cuts.get(spec.name, ())) for stage in stages for spec in stage.signature.states]
    return ShardingSummary(
        plan.label,
        math.prod(sizes.values()),
        tuple(split),
        tuple(whole),
        dict(max(counts, key=lambda count: sum(count.values()))),
        max(_rank_bytes(stage, sizes, stored) for stage in stages),
        sum(stored.values()),
        max(sum(_bytes(spec, ()) for spec in stage.signature.states) for stage in stages),
        sum({spec.name: _bytes(spec, cuts) for spec, cuts in states}.values()),
        entries_of(plan),
        plan.reasons,
        sum(axis.report.price for axis in plan.summing) if plan.invariant else None,
    )


def _collectives(program: ProgramSpec) -> Counter[str]:
    calls = [step.collective for step in program.steps if step.collective is not None]
    return Counter(call.operation for call in calls if call.phase != "done")


def _bytes(spec: TensorSpec, cuts: Sequence[StateCut]) -> int:
    """Returns the bytes of a state whose part a rank has, and of which ``cuts`` are undone."""
    own = [extent for extent in spec.shape if isinstance(extent, int)]
    return math.prod(whole_shape(own, cuts)) * ITEM_SIZES[spec.dtype]


def _rank_bytes(program: ProgramSpec, sizes: dict[str, int], stored: dict[str, int]) -> int:
    shards = {buffer.weight: buffer.shard for buffer in program.buffers if buffer.kind == "weight"}
    parts = {name: math.prod(sizes[axis] for axis in shard.split(",") if axis) for name, shard in shards.items()}
    return sum(stored[name] // count for name, count in parts.items())
