"""What a bisection found: the waterfall of stages and the first op that computes something else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lowerkit.parity.bisect.testimony import Testimony
from lowerkit.parity.metrics import Metrics


@dataclass(frozen=True)
class StageRow:
    """One stage of the waterfall.

    Attributes:
        stage: ``eager``, ``exported``, ``captured``, ``raised``, ``canonical``, ``layout``, ``fused`` or ``compiled``;
            of a mesh ``ranks`` in place of the last but one: all ranks, interpreted side by side.
        own: decibels of its outputs to float64, computed in the model's element types; None where that was not run.
        exact: the same with every float as float64: what is lost here is no rounding.
        note: why something was not run, empty otherwise.
    """

    stage: str
    own: float | None
    exact: float | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; infinite decibels (equal values) become the text ``equal``."""
        return {"stage": self.stage, "own_db": _finite(self.own), "float64_db": _finite(self.exact), "note": self.note}


@dataclass(frozen=True)
class StepRow:
    """One step of the compiled model, judged from the very bytes that it read: what it loses by itself.

    Attributes:
        node: the node that the step stands for.
        kind, family, location: as in the manifest.
        local: decibels of its results to its region in float64.
        sound: whether the kernel computes what its region says.
    """

    node: str
    kind: str
    family: str
    location: str
    local: float
    sound: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; infinite decibels (equal values) become the text ``equal``."""
        return {
            "node": self.node,
            "kind": self.kind,
            "family": self.family,
            "location": self.location,
            "local_db": _finite(self.local),
            "sound": self.sound,
        }


@dataclass(frozen=True)
class Finding:
    """The first op that computes something else.

    Attributes:
        stage: where it goes wrong first; see :class:`StageRow`.
        culprit: the pass, the kernel family, ``memory plan``, ``capture`` or ``decomposition``.
        op: the op in the IR of that stage: ``arith.subf``, ``lk.softmax``.
        node: the node of the captured graph, with the module path after ``@``.
        location: the user's ``file:line``, empty where there is none.
        shape: of its value.
        distance: of its value to what it should be.
        cause: what kind of wrong it is.
        details: further lines: what was tried, and what agrees.
        testimony: of a kernel of a target with witnesses, the layer that is wrong, and what they say.
        ranks: of a mesh, those on which it differs; empty for one device.
    """

    stage: str
    culprit: str
    op: str
    node: str
    location: str
    shape: tuple[int, ...]
    distance: Metrics | None
    cause: str
    details: tuple[str, ...] = ()
    testimony: Testimony | None = None
    ranks: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        where = f" at {self.location}" if self.location else ""
        who = f" on {', '.join(self.ranks)}" if self.ranks else ""
        layer = f"; what is wrong is {self.testimony.layer}" if self.testimony is not None else ""
        return f"stage {self.stage}, {self.culprit}: {self.op} of {self.node}{where} is the first to differ{who}{layer}"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON."""
        return {
            "stage": self.stage,
            "culprit": self.culprit,
            "op": self.op,
            "node": self.node,
            "location": self.location,
            "shape": list(self.shape),
            "distance": None if self.distance is None else self.distance.to_json(),
            "cause": self.cause,
            "details": list(self.details),
            "ranks": list(self.ranks),
            "layer": "" if self.testimony is None else self.testimony.layer,
            "witnesses": [] if self.testimony is None else [row.to_json() for row in self.testimony.rows],
        }


@dataclass
class Bisection:
    """The waterfall, and what was found: nothing where every stage computes the same.

    Attributes:
        stages: the waterfall, in order.
        finding: the first op that computes something else.
        steps: every step of the compiled model by itself.
        reproducer: files of a folder that shows the finding again, by name; empty where none could be made.
        reproducer_note: why there is none, or how it was made small.
        doubts: sentences on stages that differ though no op was named, or that nothing could be held against.
    """

    stages: list[StageRow]
    finding: Finding | None = None
    doubts: list[str] = field(default_factory=list[str])
    steps: list[StepRow] = field(default_factory=list[StepRow])
    reproducer: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    reproducer_note: str = ""

    @property
    def verdict(self) -> str:
        """What was found in one sentence; that all is the same is said only where all was compared."""
        if self.finding is not None:
            return self.finding.sentence
        if self.doubts:
            return f"no op was found, and not all is shown to be the same: {'; '.join(self.doubts)}"
        return "every stage and every kernel computes the same; what differs is rounding"

    def to_json(self) -> dict[str, Any]:
        """Returns the ``bisection`` field of the ``check`` schema."""
        return {
            "stages": [row.to_json() for row in self.stages],
            "steps": [row.to_json() for row in self.steps],
            "finding": None if self.finding is None else self.finding.to_json(),
            "doubts": self.doubts,
            "reproducer": sorted(self.reproducer),
            "reproducer_note": self.reproducer_note,
        }


def _finite(decibels: float | None) -> float | str | None:
    if decibels is None or math.isfinite(decibels):
        return decibels
    return "equal" if decibels > 0 else "no signal"
