"""What a check found: a row for each compared value, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowerkit.parity.bisect.finding import Bisection
from lowerkit.parity.gates import Verdict
from lowerkit.parity.integer.rows import IntegerRow, OwnerRow
from lowerkit.parity.permission import statements

ONE_DEVICE = "one device"
"""The kind of the rows that hold the outputs of a quantized model on a mesh to those of one device."""


@dataclass(frozen=True)
class Row:
    """One compared value: an op (``node``, ``kind``, the user's line) or an output of the model.

    ``kind`` is ``export`` where torch's export is compared with eager, and ``capture`` where what capture made of the
    export is; :data:`ONE_DEVICE` where ranks are compared with one device in place of eager. ``inputs`` says of a model
    with symbolic dims at which sizes, and which special values were given.
    """

    name: str
    kind: str
    location: str
    dtype: str
    shape: tuple[int, ...]
    verdict: Verdict
    inputs: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``check`` schema."""
        return {
            "name": self.name,
            "kind": self.kind,
            "location": self.location,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "passed": self.verdict.passed,
            "reason": self.verdict.reason,
            "to_eager": self.verdict.to_eager.to_json(),
            "inputs": self.inputs,
            **({} if self.verdict.noise is None else {"sensitivity": self.verdict.noise.to_json()}),
            **({} if self.verdict.permitted is None else {"permitted": self.verdict.permitted.to_json()}),
        }


@dataclass
class Report:
    """The outcome of a check. ``passed`` is the verdict of gate A over all ops and outputs.

    ``bisection`` is what a search for the first wrong op found, where one was asked for.
    """

    source: str
    outputs: list[Row]
    ops: list[Row]
    skipped: list[str] = field(default_factory=list[str])
    bisection: Bisection | None = None
    captures: list[Row] = field(default_factory=list[Row])
    """The export against eager; and where it fails what capture made of the export."""
    hard: list[Row] = field(default_factory=list[Row])
    """The outputs on special values, where they were asked for."""
    float64_reference: str = ""
    """What computed the float64 values, or ``none`` and why: then only the tolerance of eager applies."""
    sizes: list[str] = field(default_factory=list[str])
    """Of a model with symbolic dims: the sizes that were compared."""
    mesh: str = ""
    """Of a program for a mesh: how it is split; its ranks ran simulated, and gave the same bits."""
    integers: list[IntegerRow] = field(default_factory=list[IntegerRow])
    """Of a quantized model: its regions against the int64 interpreter, in place of ``ops``."""
    owners: list[OwnerRow] = field(default_factory=list[OwnerRow])
    """Of a quantized model: what its ops mean against the model's owner."""

    allowed: Mapping[str, str] = field(default_factory=dict[str, str])
    """What targets were allowed to compute less exactly: name, and the target's words for it."""
    ended: str = ""
    """Why a device ended the run, where a bisection then found what it was: nothing is compared behind that."""

    @property
    def passed(self) -> bool:
        """Whether every output and every op holds gate A."""
        return (
            not self.ended
            and all(row.verdict.passed for row in self._rows)
            and all(row.passed for row in [*self.integers, *self.owners])
        )

    @property
    def first_integer_failure(self) -> IntegerRow | OwnerRow | None:
        """The first region of a quantized model, in program order, that fails; or the first op."""
        return next((row for row in [*self.integers, *self.owners] if not row.passed), None)

    @property
    def first_failure(self) -> Row | None:
        """What fails first: the export, else the first op in program order, else an output, else special values."""
        return next((row for row in self._rows if not row.verdict.passed), None)

    @property
    def _rows(self) -> list[Row]:
        return [*self.captures, *self.ops, *self.outputs, *self.hard]

    def to_json(self) -> dict[str, Any]:
        """Returns the document of the ``check`` schema."""
        return {
            "source": self.source,
            "passed": self.passed,
            "outputs": [row.to_json() for row in self.outputs],
            "ops": [row.to_json() for row in self.ops],
            "captures": [row.to_json() for row in self.captures],
            "hard": [row.to_json() for row in self.hard],
            "float64_reference": self.float64_reference,
            "sizes": self.sizes,
            "mesh": self.mesh,
            "ended": self.ended,
            "skipped": self.skipped,
            **({"allowed": statements(self.allowed)} if self.allowed else {}),
            **({} if self.bisection is None else {"bisection": self.bisection.to_json()}),
            "integers": [row.to_json() for row in self.integers],
            "owners": [row.to_json() for row in self.owners],
        }
