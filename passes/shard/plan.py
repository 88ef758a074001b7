"""The plan of a sharding: which modules' weights are split along which axis, and how; and what came of it.

Vocabulary
    pattern   names modules by their path, with ``*`` and ``?``: ``*.q_proj``. A path also counts with a dot before it,
              so that ``*.up`` names a module ``up`` at the top.
    choice    ``column``: a product's weight is split along its outputs, ``row``: along its inputs; ``vocabulary``: a
              table along its rows, and a product with such a table along its outputs; ``expert``: a weight along its
              first dimension of three; ``sequence``: no weight, the module runs on slices along the sequence;
              ``batch``: the pattern names inputs of the model, which are split along their first dimension;
              ``replicate``: not at all.
    stage     a part of the model that follows another one; the ranks along a pipeline axis run one each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

Choice = Literal["column", "row", "vocabulary", "expert", "sequence", "batch", "replicate"]
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
        kind: as that of ``lk.collective_start``.
        what: the type of the operand.
        place: where the operand comes from, for people.
    """

    kind: str
    what: str
    place: str


@dataclass(frozen=True)
class StateSlices:
    """A state of which each rank has one of ``parts`` slices along a dimension; fewer than ranks: neighbours share."""

    axis: int
    parts: int


@dataclass
class ShardingReport:
    """What a plan came to.

    Attributes:
        modules: the paths that were met.
        inputs: the names of the model's inputs.
        used: entries that placed something.
        split: products and tables that are split, with their choice.
        whole: products with a weight that every rank computes whole.
        collectives: in program order.
        states: those of which each rank has a slice.
        price: by which part of its time sums in one order make the program longer, by the cost model.
    """

    modules: dict[str, None] = field(default_factory=dict[str, None])
    used: set[PlanEntry] = field(default_factory=set[PlanEntry])
    split: list[tuple[str, Choice]] = field(default_factory=list[tuple[str, Choice]])
    whole: list[str] = field(default_factory=list[str])
    collectives: list[Collective] = field(default_factory=list[Collective])
    inputs: list[str] = field(default_factory=list[str])
    states: dict[str, StateSlices] = field(default_factory=dict[str, StateSlices])
    price: float = 0.0

    def clear(self) -> None:
        """Forgets the program before: a plan may serve several."""
        for found in (self.modules, self.used, self.split, self.whole, self.collectives, self.inputs, self.states):
            found.clear()
        self.price = 0.0


@dataclass(frozen=True)
class ShardingPlan:
    """A plan for one axis of a mesh.

    Attributes:
        axis: its name.
        ranks: how many ranks lie along it.
        entries: the first one that names a module decides.
        report: filled in by the pass.
        keeps_states: each rank has states of its own between runs; not so of parts that one rank runs in turn.
    """

    axis: str
    ranks: int
    entries: tuple[PlanEntry, ...] = ()
    report: ShardingReport = field(default_factory=ShardingReport, compare=False)
    keeps_states: bool = True

    def entry_for(self, paths: Iterable[str]) -> PlanEntry | None:
        """Returns the first entry that names one of these modules; None where none does. Entries for inputs do not."""
        known = list(paths)
        entries = (entry for entry in self.entries if entry.choice != "batch")
        return next((entry for entry in entries if any(map(entry.names, known))), None)


@dataclass(frozen=True)
class StageEntry:
    """Which stage runs the modules that a pattern names."""

    pattern: str
    stage: int

    names = PlanEntry.names


@dataclass(frozen=True)
class StagePlan:
    """A plan for the pipeline axis of a mesh.

    Attributes:
        axis: its name.
        ranks: how many ranks lie along it, one stage each.
        entries: the first one that names a module decides; modules that none names run where they are needed.
        micro_batches: parts of the batch that go through the stages one behind the other.
        used: entries that placed an op, filled in by the split.
        stages: of each module with a stage, which; filled in by the split.
    """

    axis: str
    ranks: int
    entries: tuple[StageEntry, ...] = ()
    micro_batches: int = 1
    used: set[StageEntry] = field(default_factory=set[StageEntry], compare=False)
    stages: dict[str, int] = field(default_factory=dict[str, int], compare=False)

    def stage_of(self, path: str) -> StageEntry | None:
        """Returns the first entry that names ``path``; None where none does."""
        return next((entry for entry in self.entries if entry.names(path)), None)


@dataclass(frozen=True)
class MeshPlan:
    """How a program is split among the ranks of a mesh.

    Attributes:
        mesh: name and ranks of each axis; a rank's place is row-major in it, the last axis varies fastest.
        axes: the plans of the axes that split tensors, in the order in which they are applied.
        stages: the plan of the pipeline axis, if there is one.
        invariant: sums are made in one order, whatever the mesh.
        reasons: why it is as it is, where it was chosen automatically.
        sums: of one rank; what it says to sum, and no axis does, each rank sums in that order by itself.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[ShardingPlan, ...]
    stages: StagePlan | None = None
    invariant: bool = False
    reasons: tuple[str, ...] = ()
    sums: ShardingPlan | None = None

    def without_stages(self) -> MeshPlan | None:
        """Returns what is left where nothing is cut into stages; None where that is one device."""
        stages = self.stages
        mesh = tuple(axis for axis in self.mesh if stages is None or axis[0] != stages.axis)
        return replace(self, mesh=mesh, stages=None) if mesh else None

    @property
    def summing(self) -> tuple[ShardingPlan, ...]:
        """The plans that say what is summed in one order."""
        return self.axes if self.sums is None else (*self.axes, self.sums)

    @property
    def label(self) -> str:
        """As a user writes the mesh: ``dp=2,tp=2``."""
        return ",".join(f"{name}={size}" for name, size in self.mesh)
