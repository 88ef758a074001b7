"""`check`: compile a model, run it, and compare it with eager: op by op, and as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UsageError
from lowerkit.parity.bodies import bodies_of, compare_bodies
from lowerkit.parity.compare_taps import compare_taps, credible, references_of
from lowerkit.parity.gates import judge_model, judge_quantized
from lowerkit.parity.report import Report, Row

if TYPE_CHECKING:
    from lowerkit.capture.program import Program
    from lowerkit.parity.integer_row import IntegerRow, OwnerRow
    from lowerkit.parity.taps import Tap

Array = np.ndarray[Any, Any]


def check(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    cpu: str = "host",
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    per_op: bool = True,
    bisect: bool = False,
) -> Report:
    """Compiles ``model`` (as ``lowerkit.compile`` takes it) and compares it with eager by gate A.

    With ``bisect``, every stage is searched for the first op that computes something else: ``report.bisection``.

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

    return check_program(make(), cpu=cpu, per_op=per_op, bisect=bisect)


def check_program(
    program: Program,
    *,
    cpu: str = "host",
    per_op: bool = True,
    bisect: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Checks a captured program; it is compiled in the process, with a tap at every region when ``per_op``."""
    from lowerkit.compiler import CompileOptions, compile_program, lower_program

    inputs = program.example_inputs
    if inputs is None or program.eager is None:
        raise UsageError(
            "LK1003", "a check needs inputs to run with", hint="give --input NAME=@FILE.npy or NAME:SHAPE:DTYPE"
        )
    show = on_progress or (lambda _text: None)
    captured = program.copy() if bisect else None
    unlowered = program.copy() if per_op and bodies_of(program) and not program.signature.dims else None
    fused: Program | None = None
    options = CompileOptions(cpu=cpu, golden=False)
    output_specs = list(program.signature.outputs)
    taps: list[Tap] = []
    integers: list[IntegerRow] = []
    owners: list[OwnerRow] = []
    missing: list[str] = []
    quantized = False
    if per_op:
        from lowerkit.parity.integer_check import check_integers
        from lowerkit.parity.owner_check import check_owner, holds_quantization
        from lowerkit.parity.taps import add_taps

        lower_program(program, "canonical", options, on_progress)
        # What rounds to stored integers, not what holds integers: a cast to int8 is no quantization.
        quantized = holds_quantization(program)
        if quantized and not program.signature.dims:
            show("comparing with the owner")
            owners, missing = check_owner(program, inputs)
        lower_program(program, "fused", options, on_progress)
        if quantized and not program.signature.dims:
            show("comparing with the int64 interpreter")
            integers = check_integers(program, inputs, options)
        elif not quantized:
            fused = program.copy() if unlowered is not None else None
            taps = add_taps(program)
    compiled = compile_program(program, options, on_progress)
    show("running")
    ours = compiled.session.run(*inputs)
    show("running eager")
    eager = program.eager(*inputs)
    show("running eager in float64")
    report = Report(program.source, [], [], missing, integers=integers, owners=owners)
    if quantized:
        checked = [*integers, *owners] if owners else []
        report.outputs = [
            Row(
                spec.name,
                "output",
                "",
                spec.dtype,
                actual.shape,
                judge_quantized(actual, expected, checked),
            )
            for spec, actual, expected in zip(output_specs, ours, eager, strict=False)
        ]
        return report
    onnx_exact = _onnx_float64_values(program, inputs, report)
    if program.onnx_model is not None:
        exact = [
            credible(onnx_exact.get(spec.name), expected) for spec, expected in zip(output_specs, eager, strict=False)
        ]
    else:
        exact = _float64_outputs(program, inputs, len(output_specs) + len(program.signature.states))
    states = compiled.session.state
    compared = [(spec, "output", actual) for spec, actual in zip(output_specs, ours, strict=False)]
    compared += [(spec, "state", states[spec.name]) for spec in program.signature.states]
    report.outputs = [
        Row(spec.name, kind, "", spec.dtype, actual.shape, judge_model(spec.dtype, actual, expected, wanted))
        for (spec, kind, actual), expected, wanted in zip(compared, eager, exact, strict=False)
    ]
    if taps:
        show("comparing op by op")
        passed = {place for place, row in enumerate(report.outputs) if row.verdict.passed}
        compare_taps(program, taps, ours, references_of(program, inputs, taps, onnx_exact), passed, report)
    if unlowered is not None and fused is not None:
        show("comparing inside branches and loops")
        compare_bodies(unlowered, fused, inputs, options, report)
    if captured is not None:
        from lowerkit.parity.bisect.search import bisect_program

        report.bisection = bisect_program(captured, cpu=cpu, on_progress=on_progress)
    return report


def _float64_outputs(program: Program, inputs: Sequence[Array], count: int) -> Sequence[Array | None]:
    """Returns the outputs, then the final states, in float64; None for each where there is no graph to run."""
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
