"""Compares a compiled model with eager on one set of inputs after another: export, outputs, final states and ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.parity.compare.outputs import OutputJudge
from lowerkit.parity.compare.taps import compare_taps, node_of
from lowerkit.parity.references.float64_reference import float64_reference_of
from lowerkit.parity.references.op_references import op_references
from lowerkit.parity.report.report import Report, Row
from lowerkit.parity.symbolic_sizes import further_sizes, inputs_at, text_of

if TYPE_CHECKING:
    from lowerkit.parity.taps import Tap
    from lowerkit.program.program import Program
    from lowerkit.runtimes.session import Session
    from lowerkit.spmd.simulated_session import SimulatedSession

Array = np.ndarray[Any, Any]


class Comparison:
    """A compiled model beside the model itself."""

    def __init__(
        self,
        model: Program,
        session: Session | SimulatedSession,
        taps: Sequence[Tap],
        report: Report,
        show: Callable[[str], None],
    ) -> None:
        """Makes the comparison.

        Args:
            model: as captured, with the signature of the model.
            session: the compiled model; its outputs are those of the model, then the taps.
            taps: in program order.
            report: gets the rows.
            show: called with a line for people.
        """
        self.model = model
        self.session = session
        self.taps = taps
        self.report = report
        self.show = show

    def at(self, inputs: Sequence[Array], size: str = "") -> OutputJudge:
        """Compares on ``inputs``; ``size`` says for the rows what they are, where the model has symbolic dims.

        Raises:
            LowerkitError: the compiled model refuses the inputs.
            Exception: what eager raises for them.
        """
        model, report = self.model, self.report
        assert model.eager is not None, "the caller checked"
        self.show("running eager")
        eager = model.eager(*inputs)
        self.show("running")
        self.session.reset()
        ours = self.session.run(*inputs)
        self.show("running eager in float64")
        onnx_exact = self._onnx_float64_values(inputs)
        reference = float64_reference_of(model, inputs, eager, onnx_exact)
        report.float64_reference = report.float64_reference or (
            f"none: {reference.missing}" if reference.missing else reference.made_by
        )
        judge = OutputJudge(model, inputs, eager, reference, report)
        if model.eager_module is not None:
            from lowerkit.parity.compare.export import compare_export

            self.show("comparing the export with eager")
            compare_export(model, judge, report, size)
        states = self.session.state
        compared = [(spec, "output", value) for spec, value in zip(model.signature.outputs, ours, strict=False)]
        compared += [(spec, "state", states[spec.name]) for spec in model.signature.states]
        rows = [
            Row(spec.name, kind, "", spec.dtype, value.shape, judge.judge(place, spec.dtype, value), size)
            for place, (spec, kind, value) in enumerate(compared)
        ]
        report.outputs += rows
        if self.taps:
            self.show("comparing op by op")
            self._ops(judge, ours, onnx_exact, rows, size)
        if size:
            report.sizes.append(size)
        return judge

    def _ops(
        self, judge: OutputJudge, ours: Sequence[Array], onnx_exact: Mapping[str, Array], rows: Sequence[Row], size: str
    ) -> None:
        count = len(self.model.signature.outputs)
        passed = {place for place, row in enumerate(rows[:count]) if row.verdict.passed}
        references = op_references(self.model, {node_of(tap) for tap in self.taps}, judge, onnx_exact)
        part = Report(self.report.source, [], [])
        specs = self.session.signature.outputs
        compare_taps(
            specs, self.taps, ours, references.values, passed, part, references.noise, size, references.permitted
        )
        self.report.skipped += [line for line in part.skipped if line not in self.report.skipped]
        self.report.ops = part.ops if not self.report.ops else worst_of(self.report.ops, part.ops)
        if references.untrusted:
            from lowerkit.parity.compare.export import compare_capture

            compare_capture(self.model, judge, references.untrusted, self.report, size)

    def further(self) -> None:
        """Compares at further sizes of the symbolic dims; those that eager or the signature refuses are listed."""
        model, report = self.model, self.report
        assert model.example_inputs is not None, "the caller checked"
        for number, sizes in enumerate(further_sizes(model.signature, model.example_inputs)):
            inputs = inputs_at(model.signature, sizes, model.example_inputs, number)
            size = text_of(sizes)
            self.show(f"comparing at {size}")
            try:
                self.at(inputs, size)
            except LowerkitError as error:
                report.skipped.append(f"{size}: refused: {error.message}")
            except Exception as error:  # models raise what they like for a size that they are not made for
                text = next(iter(str(error).splitlines()), "")
                report.skipped.append(f"{size}: eager refuses it: {type(error).__name__}: {text}")
        if not report.sizes[1:]:
            report.skipped.append("further sizes: there are none that eager takes within the ranges of the dims")

    def _onnx_float64_values(self, inputs: Sequence[Array]) -> Mapping[str, Array]:
        """Returns the values of an ONNX model in float64; without them the report says that only tolerance decides."""
        if self.model.onnx_model is None:
            return {}
        from lowerkit.parity.references.onnx_nodes import onnx_float64_values

        try:
            return onnx_float64_values(self.model, inputs)
        except Exception as error:  # ONNX's evaluator raises what it likes for an op it cannot compute
            self.report.skipped.append(f"the float64 reference: {type(error).__name__}: {error}")
            return {}


def worst_of(before: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Returns for each op, in program order, the row of the size at which it failed first, else is farthest off."""
    kept = {(row.name, row.kind, row.location): row for row in before}
    for row in rows:
        key = (row.name, row.kind, row.location)
        old = kept.get(key)
        if old is None or (old.verdict.passed and _badness(row) > _badness(old)):
            kept[key] = row
    return list(kept.values())


def _badness(row: Row) -> tuple[bool, float]:
    return not row.verdict.passed, -row.verdict.to_eager.sqnr_db
