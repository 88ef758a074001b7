"""What a plan came to, in a line for people and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lowerkit.passes.shard.plan import ShardingPlan
from lowerkit.runtimes.manifest import ProgramSpec

_SHOWN = 3


@dataclass(frozen=True)
class ShardingSummary:
    """What every rank of a mesh runs.

    Attributes:
        axis, ranks: the mesh.
        split, whole: modules of the products and tables that are split; of products that every rank computes whole.
        collectives: how many of each kind.
        rank_bytes, stored_bytes: weights that one rank reads, and those in the artifact.
    """

    axis: str
    ranks: int
    split: tuple[str, ...]
    whole: tuple[str, ...]
    collectives: dict[str, int]
    rank_bytes: int
    stored_bytes: int

    def render(self) -> str:
        """Returns the line for people."""
        total = len(self.split) + len(self.whole)
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items()) or "no collective"
        line = (
            f"{self.axis}={self.ranks}: {len(self.split)} of {total} products and tables split, {kinds}; "
            f"{self.rank_bytes / 1e6:.2f} MB of weights a rank, {self.stored_bytes / 1e6:.2f} MB stored"
        )
        if not self.whole:
            return line
        named = ", ".join(path or "the model" for path in self.whole[:_SHOWN])
        return f"{line}; whole on every rank: {named}{', ...' if len(self.whole) > _SHOWN else ''}"

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return {
            "axis": self.axis,
            "ranks": self.ranks,
            "split": list(self.split),
            "whole": list(self.whole),
            "collectives": self.collectives,
            "rank_bytes": self.rank_bytes,
            "stored_bytes": self.stored_bytes,
        }


def summary_of(plan: ShardingPlan, program: ProgramSpec, stored: dict[str, int]) -> ShardingSummary:
    """Returns the summary of a compiled program; ``stored`` is the bytes of each weight of the artifact."""
    shards = {buffer.weight: buffer.shard for buffer in program.buffers if buffer.kind == "weight"}
    report = plan.report
    return ShardingSummary(
        plan.axis,
        plan.ranks,
        tuple(path for path, _ in report.split),
        tuple(report.whole),
        dict(Counter(each.kind for each in report.collectives)),
        sum(stored[name] // (plan.ranks if shard else 1) for name, shard in shards.items()),
        sum(stored[name] for name in shards),
    )
