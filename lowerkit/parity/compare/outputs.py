"""Judges the outputs of one run of a model; eager's sensitivity is measured when a value first asks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.parity.gates import GATES, Verdict, judge_model
from lowerkit.parity.noise import Noise, noise_of
from lowerkit.parity.permission import Permitted, permitted_of
from lowerkit.parity.references.float64_reference import Float64Reference, permitted_outputs, perturbed_outputs

if TYPE_CHECKING:
    from lowerkit.parity.report.report import Report
    from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]


class OutputJudge:
    """Judges values of a model's outputs and final states, on one set of inputs.

    Attributes:
        inputs: of the run, in the order of the signature.
        eager: eager's outputs, then its final states.
        reference: the same in float64.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Array],
        eager: Sequence[Array],
        reference: Float64Reference,
        report: Report,
    ) -> None:
        """``report`` gets a line where eager cannot be perturbed."""
        self.inputs = inputs
        self.eager = eager
        self.reference = reference
        self._program = program
        self._report = report
        self._perturbed: list[list[Array]] | None = None
        self._permitted: list[list[Array]] | None = None

    @property
    def allowed(self) -> Collection[str]:
        """What targets were allowed to compute less exactly."""
        return self._report.allowed

    def judge(self, place: int, dtype: str, actual: Array) -> Verdict:
        """Judges ``actual``, of the compiled model, as output number ``place``."""
        return self._judge(place, dtype, actual, permits=True)

    def judge_exactly(self, place: int, dtype: str, actual: Array) -> Verdict:
        """As :meth:`judge`, of what no target computed: nothing that targets are allowed counts."""
        return self._judge(place, dtype, actual, permits=False)

    def _judge(self, place: int, dtype: str, actual: Array, *, permits: bool) -> Verdict:
        eager = self.eager[place]
        if actual.shape != eager.shape:
            raise AssertionError(f"output {place} is {actual.shape}, eager's {eager.shape}")
        verdict = judge_model(dtype, actual, eager)
        exact = self.reference.values[place]
        if verdict.passed or exact is None or dtype not in GATES or not verdict.to_eager.special_equal:
            return verdict
        permitted = self._permission(place) if permits else None
        return judge_model(dtype, actual, eager, exact, self._noise(place, exact), permitted)

    def _permission(self, place: int) -> Permitted | None:
        if self._permitted is None:
            try:
                self._permitted = permitted_outputs(self._program, self.inputs, self.allowed)
            except Exception as error:  # eager may compute indices with its products
                self._permitted = []
                self._report.skipped.append(f"what is allowed: {type(error).__name__}: {error}")
        return permitted_of(sorted(self.allowed), self.eager[place], [run[place] for run in self._permitted])

    def _noise(self, place: int, exact: Array) -> Noise | None:
        if self._perturbed is None:
            try:
                self._perturbed = perturbed_outputs(self._program, self.inputs)
            except Exception as error:  # a model may refuse what is no longer exactly its input
                self._perturbed = []
                self._report.skipped.append(f"eager's sensitivity: {type(error).__name__}: {error}")
        return noise_of(self.eager[place], [run[place] for run in self._perturbed], exact)
