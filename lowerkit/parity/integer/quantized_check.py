"""Checks a quantized model: regions beside the interpreter, ops beside the owner, outputs; on one device and on a mesh.

What a quantized model means is held to its owner on the program of one device, before it is split. From there on the
ranks of a mesh are held to that program: their outputs to its bits. Integers leave no choice, so any split gives these
bits, wherever all that is computed is exact; where floats are summed or a function such as exp is in between, ties may
fall to the other side, and the gate of quantized models' outputs holds in place of the bits. Kernels are checked as the
ranks run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lowerkit.compiled import Compiled, CompileOptions
from lowerkit.compiler import compile_program, lower_program
from lowerkit.errors import UsageError
from lowerkit.parity.gates import Verdict, judge_quantized
from lowerkit.parity.integer.interpreter_check import check_integers, computes_exactly
from lowerkit.parity.integer.source_framework_check import check_owner
from lowerkit.parity.metrics import compare
from lowerkit.parity.report.report import ONE_DEVICE, Report, Row
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.structs import REDUCING

Array = np.ndarray[Any, Any]
Progress = Callable[[str], None]


def check_quantized(program: Program, options: CompileOptions, report: Report, on_progress: Progress | None) -> None:
    """Checks a program at stage ``canonical`` that rounds to stored integers, not split yet; fills in the report.

    Raises:
        UsageError: LK1011, the program is one of ranks already.
        LowerkitError: the model cannot be compiled.
    """
    if program.mesh:
        raise UsageError(
            "LK1011",
            f"{program.source} is split among ranks already: there is no one device to compare its integers with",
            hint="check the model from before it was split, with --mesh",
        )
    inputs, show = program.example_inputs, on_progress or (lambda _text: None)
    assert inputs is not None, "the caller checked"
    one_device = None if options.sharding is None else program.copy()
    if program.signature.dims:
        report.skipped.append("the regions of a quantized model with symbolic dims, and all sizes but the example's")
    else:
        show("comparing with the owner")
        report.owners, missing = check_owner(program, inputs)
        report.skipped += missing
        lower_program(program, "fused", options, on_progress)
        show("comparing with the int64 interpreter")
        report.integers = check_integers(program, inputs, options)
    check_outputs(program, one_device, options, report, on_progress)


def check_outputs(
    program: Program,
    one_device: Program | None,
    options: CompileOptions,
    report: Report,
    on_progress: Progress | None,
) -> None:
    """Compiles and runs a quantized program; compares its outputs with the owner's, and with those of one device.

    Args:
        program: at any stage. one_device: the same before it is split; None where ``program`` is for one device.
        options: for ``program``. on_progress: called with a line for people.
        report: gets ``outputs``, ``mesh``, and what is not compared; its rows of regions and ops explain ties.
    """
    inputs, eager, show = program.example_inputs, program.eager, on_progress or (lambda _text: None)
    assert inputs is not None, "the caller checked"
    assert eager is not None, "the caller checked"
    compiled = compile_program(program, options, on_progress)
    report.mesh = compiled.sharding.render() if compiled.sharding else ""
    show("running")
    ours = compiled.runner.run(*inputs)
    show("running eager")
    checked = [*report.integers, *report.owners] if report.owners else []
    report.outputs = [
        Row(spec.name, "output", "", spec.dtype, actual.shape, judge_quantized(actual, expected, checked))
        for spec, actual, expected in zip(program.signature.outputs, ours, eager(*inputs), strict=False)
    ]
    if program.signature.states:
        names = ", ".join(spec.name for spec in program.signature.states)
        report.skipped.append(f"the final states of a quantized model: {names}")
    if one_device is None:
        return
    show("comparing with one device")
    alone = replace(options, sharding=None)
    lower_program(one_device, "fused", alone, on_progress)
    exact = computes_exactly(one_device) and not sums_floats(compiled)
    expected = compile_program(one_device, alone, on_progress).session.run(*inputs)
    report.outputs += [
        Row(spec.name, ONE_DEVICE, "", spec.dtype, actual.shape, judge_split(actual, single, exact=exact))
        for spec, actual, single in zip(program.signature.outputs, ours, expected, strict=True)
    ]


def judge_split(actual: Array, one_device: Array, *, exact: bool) -> Verdict:
    """Judges what ranks gave against what one device gives: by its bits where all that they compute is exact."""
    if actual.tobytes() == one_device.tobytes():
        return Verdict(True, "the bits of one device", compare(actual, one_device), None, None)
    if not exact:
        verdict = judge_quantized(actual, one_device, [])
        return replace(verdict, reason=f"{verdict.reason} to one device, which computes floats in another order")
    count = int(np.count_nonzero(actual != one_device))
    reason = f"{count} of {actual.size} elements are not those of one device, and all that is computed is exact"
    return Verdict(False, reason, compare(actual, one_device), None, None)


def sums_floats(compiled: Compiled) -> bool:
    """Whether ranks make one float of several: its value hangs on their order, and a negative zero is lost in it."""
    steps = [step for program in compiled.parts.manifest.programs for step in program.steps]
    calls = [step.collective for step in steps if step.collective is not None]
    return any(
        call.operation in REDUCING and call.reduction in ("sum", "product") and "f" in call.dtype for call in calls
    )
