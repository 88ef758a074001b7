"""Which layer of a target is wrong: the witnesses of one region, held against the interpreter in numpy.

Steps: the region in numpy is what is right; the witnesses of its target follow in the order of the layers; last comes
what the region gave within the model. The first that is wrong convicts its layer, and those before it that nobody saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.compiler import CompileOptions
from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.bisect.units import Unit
from lowerkit.parity.metrics import compare
from lowerkit.parity.permission import Permitted, permitted_results
from lowerkit.program.locations import origin_of
from lowerkit.targets.asking import ask
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import Target
from lowerkit.targets.witness import Witness

Agrees = Callable[[str, Array, Array, Array, Permitted | None], bool]
"""Whether a value is right: its element type, the value, what the region gives in its own types and in float64, and how
far what is allowed moves it."""

REFERENCE = "numpy"
SCHEDULE = "the launch or the schedule"


@dataclass(frozen=True)
class WitnessRow:
    """What one witness says.

    Attributes:
        name, author: of the witness.
        verdict: ``agrees``, ``differs``, ``offends`` (it does what no kernel may) or ``silent`` (there is none).
        note: decibels to the region in float64, the offence, or why there is none.
    """

    name: str
    author: str
    verdict: str
    note: str

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.name} ({self.author}) {self.verdict}: {self.note}"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields."""
        return {"name": self.name, "author": self.author, "verdict": self.verdict, "note": self.note}


@dataclass(frozen=True)
class Testimony:
    """The layer that is wrong, and what the witnesses say.

    Attributes:
        layer: of the target: ``the kernel``; several with ``or`` between where no witness stands between them.
        rows: the witnesses in order.
    """

    layer: str
    rows: tuple[WitnessRow, ...]

    @property
    def details(self) -> tuple[str, ...]:
        """The rows and the layer, in lines for people."""
        return (*(row.sentence for row in self.rows), f"so what is wrong is {self.layer}")


def testimony_of(
    unit: Unit,
    operands: Sequence[Array],
    is_weight: Sequence[bool],
    agrees: Agrees,
    options: CompileOptions,
) -> Testimony | None:
    """Returns which layer is wrong, of a unit that is wrong within the model; None where its target has no witnesses.

    Args:
        unit: what the step computes.
        operands: what it read.
        is_weight: for each whether it is stored with the code.
        agrees: the rule by which it was found wrong.
        options: as the model was compiled; on the target's device itself, with none in its place, it may be wrong too.
    """
    found: Target | None = next((each for each in options.spec.accelerator_targets if each.name == unit.target), None)
    if found is None:
        return None
    region = unit.view or _view(unit, is_weight)
    witnesses: Sequence[Witness] = ask(found, "witnesses", (list, tuple), region, list(operands))
    if not witnesses:
        return None
    own, exact = unit.run(operands, float64=False), unit.run(operands, float64=True)
    dtypes = [str(type_.element_type) for type_ in region.results]
    moved = permitted_results(options.allow, own, lambda: unit.run(operands, float64=False))
    rows = [_row(witness, dtypes, own, exact, moved, agrees) for witness in witnesses]
    return Testimony(_layer(witnesses, rows, options.device), tuple(rows))


def _view(unit: Unit, is_weight: Sequence[bool]) -> RegionView:
    names = [f"weight.{number}" if stored else "" for number, stored in enumerate(is_weight)]
    return RegionView.from_region(unit.op, names, location=origin_of(unit.op.location).source_line or "")


def _row(
    witness: Witness,
    dtypes: Sequence[str],
    own: Sequence[Array],
    exact: Sequence[Array],
    moved: Sequence[Permitted | None],
    agrees: Agrees,
) -> WitnessRow:
    if witness.offence is not None:
        return WitnessRow(witness.name, witness.author, "offends", str(witness.offence))
    if witness.results is None:
        return WitnessRow(witness.name, witness.author, "silent", witness.missing)
    found = list(zip(dtypes, witness.results, own, exact, moved, strict=True))
    distances = [compare(actual, wanted) for _, actual, _, wanted, _ in found]
    least = min((each.sqnr_db if each.special_equal else -math.inf for each in distances), default=math.inf)
    verdict = "agrees" if all(agrees(*each) for each in found) else "differs"
    text = f"{least:.1f} dB to {REFERENCE}" if math.isfinite(least) else f"equal to {REFERENCE}"
    if least == -math.inf:
        text = f"NaN and infinities, or no signal, where {REFERENCE} has others"
    return WitnessRow(witness.name, witness.author, verdict, text)


def _layer(witnesses: Sequence[Witness], rows: Sequence[WitnessRow], device: str | None) -> str:
    unseen: list[str] = []
    for witness, row in zip(witnesses, rows, strict=True):
        unseen.append(witness.layer)
        if row.verdict in ("differs", "offends"):
            return " or ".join(unseen)
        if row.verdict == "agrees":
            unseen = []
    return " or ".join([*unseen, SCHEDULE if device else f"{SCHEDULE}, or the device"])
