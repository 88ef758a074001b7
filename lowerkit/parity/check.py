"""`check`: compile a model, run it, and compare it with eager: op by op, and as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UsageError
from lowerkit.parity.gates import GATES, Verdict, judge_model, judge_op
from lowerkit.parity.metrics import compare

if TYPE_CHECKING:
    from lowerkit.capture.program import Program
    from lowerkit.parity.taps import Tap

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One compared value: an op (``node``, ``kind``, the user's line) or an output of the model."""

    name: str
    kind: str
    location: str
    dtype: str
    shape: tuple[int, ...]
    verdict: Verdict

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
        }


@dataclass
class Report:
    """The outcome of a check. ``passed`` is the verdict of gate A over all ops and outputs."""

    source: str
    outputs: list[Row]
    ops: list[Row]
    skipped: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        """Whether every output and every op holds gate A."""
        return all(row.verdict.passed for row in [*self.outputs, *self.ops])

    @property
    def first_failure(self) -> Row | None:
        """The first op, in program order, that fails; an output when only outputs fail."""
        return next((row for row in [*self.ops, *self.outputs] if not row.verdict.passed), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the document of the ``check`` schema."""
        return {
            "source": self.source,
            "passed": self.passed,
            "outputs": [row.to_json() for row in self.outputs],
            "ops": [row.to_json() for row in self.ops],
            "skipped": self.skipped,
        }


def check(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    cpu: str = "host",
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    per_op: bool = True,
) -> Report:
    """Compiles ``model`` (as ``lowerkit.compile`` takes it) and compares it with eager by gate A.

    Raises:
        UsageError: LK1003, there are no example inputs to run with.
        LowerkitError: the model cannot be captured or compiled.
    """
    if isinstance(model, (str, os.PathLike)):
        from lowerkit.capture.load_model import capture_path

        def make() -> Program:
            return capture_path(str(model), [], [], example_inputs=example_inputs)
    else:
        from lowerkit.capture.capture import capture

        def make() -> Program:
            return capture(model, example_inputs, dynamic_shapes=dynamic_shapes, kwargs=kwargs)

    return check_program(make(), cpu=cpu, per_op=per_op)


def check_program(
    program: Program, *, cpu: str = "host", per_op: bool = True, on_progress: Callable[[str], None] | None = None
) -> Report:
    """Checks a captured program; it is compiled in the process, with a tap at every region when ``per_op``."""
    from lowerkit.compiler import CompileOptions, compile_program, lower_program

    inputs = program.example_inputs
    if inputs is None or program.eager is None:
        raise UsageError(
            "LK1003", "a check needs inputs to run with", hint="give --input NAME=@FILE.npy or NAME:SHAPE:DTYPE"
        )
    show = on_progress or (lambda _text: None)
    options = CompileOptions(cpu=cpu, golden=False)
    output_specs = list(program.signature.outputs)
    taps: list[Tap] = []
    if per_op:
        from lowerkit.parity.taps import add_taps

        lower_program(program, "fused", options, on_progress)
        taps = add_taps(program)
    compiled = compile_program(program, options, on_progress)
    show("running")
    ours = compiled.session.run(*inputs)
    show("running eager")
    eager = program.eager(*inputs)
    show("running eager in float64")
    report = Report(program.source, [], [])
    onnx_exact = _onnx_float64_values(program, inputs, report)
    if program.onnx_model is not None:
        exact = [
            _credible(onnx_exact.get(spec.name), expected, spec.dtype)
            for spec, expected in zip(output_specs, eager, strict=False)
        ]
    else:
        exact = _float64_outputs(program, inputs, len(output_specs))
    report.outputs = [
        Row(spec.name, "output", "", spec.dtype, actual.shape, judge_model(spec.dtype, actual, expected, wanted))
        for spec, actual, expected, wanted in zip(output_specs, ours, eager, exact, strict=False)
    ]
    if taps:
        show("comparing op by op")
        _compare_taps(program, inputs, taps, ours, onnx_exact, report)
    return report


def _float64_outputs(program: Program, inputs: Sequence[Array], count: int) -> Sequence[Array | None]:
    """Returns the outputs in float64, None for each where there is no graph to run in float64."""
    if program.functional is None:
        return [None] * count
    from lowerkit.parity.reference import float64_outputs

    return float64_outputs(program.functional, inputs, count) or [None] * count


def _onnx_float64_values(program: Program, inputs: Sequence[Array], report: Report) -> Mapping[str, Array]:
    """Returns the values of an ONNX model in float64; without them the report says that the tolerance alone decides."""
    if program.onnx_model is None:
        return {}
    from lowerkit.parity.onnx_reference import onnx_float64_values

    try:
        return onnx_float64_values(program, inputs)
    except Exception as error:  # ONNX's evaluator raises what it likes for an op it cannot compute
        report.skipped.append(f"the float64 reference: {type(error).__name__}: {error}")
        return {}


def _credible(float64: Array | None, eager: Array, dtype: str) -> Array | None:
    """Returns ONNX's float64 value, or None where eager is so far from it that it is the value of another computation.

    The evaluator has bugs of its own (it trained old batch norms), and an error to a wrong value explains anything.
    """
    if float64 is None or dtype not in GATES or float64.shape != eager.shape:
        return None
    return float64 if compare(eager, float64).sqnr_db >= GATES[dtype].model_sqnr_db / 2 else None


def _compare_taps(
    program: Program,
    inputs: Sequence[Array],
    taps: Sequence[Tap],
    ours: Sequence[Array],
    onnx_exact: Mapping[str, Array],
    report: Report,
) -> None:
    from lowerkit.parity.taps import align

    nodes = {tap.node.partition("@")[0] for tap in taps}
    if program.functional is not None:
        from lowerkit.parity.reference import node_values

        eager = node_values(program.functional, inputs, nodes, float64=False)
        float64 = node_values(program.functional, inputs, nodes, float64=True)
    else:
        from lowerkit.parity.onnx_reference import onnx_node_values

        eager = onnx_node_values(program, inputs, nodes)
        float64 = onnx_exact
    for tap in taps:
        node = tap.node.partition("@")[0]
        dtype = program.signature.outputs[tap.output].dtype
        expected = eager.get(node)
        actual = None if expected is None else align(ours[tap.output], expected)
        if expected is None or actual is None:
            report.skipped.append(f"{tap.node} ({tap.kind}): eager has no value of that name and size")
            continue
        exact = float64.get(node)
        if program.onnx_model is not None:
            exact = _credible(exact, expected, dtype)
        verdict = judge_op(dtype, actual, expected, exact)
        report.ops.append(Row(tap.node, tap.kind, tap.location, dtype, actual.shape, verdict))
