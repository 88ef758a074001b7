"""The plan of a sharding: which modules' weights are split, and how; and what came of it.

Vocabulary
    pattern   names modules by their path, with ``*`` and ``?``: ``*.q_proj``. A path also counts with a dot before it,
              so that ``*.up`` names a module ``up`` at the top.
    choice    ``column``: a product's weight is split along its outputs, ``row``: along its inputs; ``vocabulary``: a
              table along its rows, and a product with such a table along its outputs; ``replicate``: not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

Choice = Literal["column", "row", "vocabulary", "replicate"]
CHOICES: tuple[Choice, ...] = get_args(Choice)


@dataclass(frozen=True)
class PlanEntry:
    """What to do with the weights of the modules that a pattern names."""

    pattern: str
    choice: Choice

    def names(self, path: str) -> bool:
        """Whether the pattern names the module at ``path``."""
        return fnmatchcase(path, self.pattern) or fnmatchcase(f".{path}", self.pattern)


@dataclass(frozen=True)
class Collective:
    """A collective that the program needs.

    Attributes:
        kind: ``all_reduce``, ``all_gather`` or ``reduce_scatter``.
        what: the type of the operand.
        place: where the operand comes from, for people.
    """

    kind: str
    what: str
    place: str


@dataclass
class ShardingReport:
    """What a plan came to.

    Attributes:
        modules: the paths that were met.
        used: entries that placed something.
        split: products and tables that are split, with their choice.
        whole: products with a weight that every rank computes whole.
        collectives: in program order.
    """

    modules: dict[str, None] = field(default_factory=dict[str, None])
    used: set[PlanEntry] = field(default_factory=set[PlanEntry])
    split: list[tuple[str, Choice]] = field(default_factory=list[tuple[str, Choice]])
    whole: list[str] = field(default_factory=list[str])
    collectives: list[Collective] = field(default_factory=list[Collective])

    def clear(self) -> None:
        """Forgets the program before: a plan may serve several."""
        for found in (self.modules, self.used, self.split, self.whole, self.collectives):
            found.clear()


@dataclass(frozen=True)
class ShardingPlan:
    """A plan for one axis of a mesh.

    Attributes:
        axis: its name.
        ranks: how many ranks lie along it.
        entries: the first one that names a module decides.
        report: filled in by the pass.
    """

    axis: str
    ranks: int
    entries: tuple[PlanEntry, ...] = ()
    report: ShardingReport = field(default_factory=ShardingReport, compare=False)

    def entry_for(self, paths: Iterable[str]) -> PlanEntry | None:
        """Returns the first entry that names one of ``paths``; None where none does."""
        known = list(paths)
        return next((entry for entry in self.entries if any(map(entry.names, known))), None)
