"""Judges the outputs of one run of a model; eager's sensitivity is measured when a value first asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.parity.gates import GATES, Verdict, judge_model
from lowerkit.parity.noise import Noise, noise_of
from lowerkit.parity.references.float64_reference import Float64Reference, perturbed_outputs

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

    def judge(self, place: int, dtype: str, actual: Array) -> Verdict:
        """Judges ``actual`` as output number ``place``."""
        eager = self.eager[place]
        if actual.shape != eager.shape:
            raise AssertionError(f"output {place} is {actual.shape}, eager's {eager.shape}")
        verdict = judge_model(dtype, actual, eager)
        exact = self.reference.values[place]
        if verdict.passed or exact is None or dtype not in GATES or not verdict.to_eager.special_equal:
            return verdict
        return judge_model(dtype, actual, eager, exact, self._noise(place, exact))

    def _noise(self, place: int, exact: Array) -> Noise | None:
        if self._perturbed is None:
            try:
                self._perturbed = perturbed_outputs(self._program, self.inputs)
            except Exception as error:  # a model may refuse what is no longer exactly its input
                self._perturbed = []
                self._report.skipped.append(f"eager's sensitivity: {type(error).__name__}: {error}")
        return noise_of(self.eager[place], [run[place] for run in self._perturbed], exact)
