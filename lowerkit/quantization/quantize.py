"""`quantize`: static int8 quantization of a float model, compiled, with the verdict of gate B.

Steps
    1. raise the model; find its products of f32 with a constant right operand;
    2. compile a copy with their activations as outputs, run it on every sample, and make a range of each;
    3. write quantize and dequantize ops around them: activations unsigned, one scale for all elements; weights
       symmetric, one scale for each output channel;
    4. compile: the passes of ``passes/quantize`` bring that to the integer level;
    5. run both models once more and compare (gate B).

What is no product (softmax, norms, additions, attention) stays in floats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.parity.gate_b import GateB, Output, judge_activation
from lowerkit.parity.metrics import compare
from lowerkit.quantization.calibration_data import Sample, samples_of
from lowerkit.quantization.methods import make_method, unsigned_scaling

if TYPE_CHECKING:
    from lowerkit.capture.program import Program
    from lowerkit.compiler import Compiled, CompileOptions
    from lowerkit.quantization.sites import Sites

Array = np.ndarray[Any, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Quantization:
    """How to quantize.

    Attributes:
        method: a name of :data:`METHODS`.
        percentile: of the method ``percentile``.
    """

    method: str = "min-max"
    percentile: float = 99.99


@dataclass
class Quantized:
    """A quantized model: compiled, and how far it is from the float model."""

    compiled: Compiled
    report: GateB


def quantize(
    model: Any,
    calibration: Mapping[str, Array] | Sequence[Sequence[Any]],
    example_inputs: Sequence[Any] | None = None,
    *,
    method: str = "min-max",
    percentile: float = 99.99,
    cpu: str = "host",
) -> Quantized:
    """Quantizes ``model`` (as ``lowerkit.compile`` takes it) to int8 and compiles it.

    Args:
        model: a float model, f32.
        calibration: arrays by input name with samples in front, or a list of samples, each a list of inputs.
        example_inputs: what gate B compares on, and what fixes the shapes of a module; without them the first sample.
        method: ``min-max`` or ``percentile``.
        percentile: of the method ``percentile``.
        cpu: ``host`` or the CPU level to compile for.

    Raises:
        InputError: LK1003, the calibration data does not fit the model.
        UsageError: LK1009, the method or percentile is unknown.
        UnsupportedError: LK4001, the model has no product that can be quantized.
        LowerkitError: the model cannot be captured or compiled.
    """
    from lowerkit.compiler import CompileOptions

    given = example_inputs
    if given is None and not isinstance(calibration, Mapping) and len(calibration):
        given = calibration[0]
    if isinstance(model, (str, os.PathLike)):
        from lowerkit.capture.load_model import capture_path

        program = capture_path(str(model), [], [], example_inputs=given)
    else:
        from lowerkit.capture.capture import capture

        program = capture(model, given)
    if isinstance(calibration, Mapping):
        samples = samples_of(program.signature, calibration)
    else:
        from lowerkit.capture.dtypes import to_numpy

        samples = [
            [np.asarray(value) if isinstance(value, np.ndarray) else to_numpy(value) for value in sample]
            for sample in calibration
        ]
    settings = Quantization(method, percentile)
    return quantize_program(program, samples, settings, CompileOptions(cpu=cpu))


def quantize_program(
    program: Program,
    samples: Sequence[Sample],
    settings: Quantization,
    options: CompileOptions,
    on_progress: Progress | None = None,
) -> Quantized:
    """Quantizes a captured program, which is changed; see :func:`quantize`."""
    from lowerkit.compiler import compile_program, lower_program
    from lowerkit.quantization.sites import find_sites, insert, observed

    show = on_progress or (lambda _text: None)
    make_method(settings.method, settings.percentile)  # fails before anything is computed
    if not samples:
        raise UsageError("LK1003", "there is no calibration data", hint="give at least one sample of every input")
    eager = program.eager
    lower_program(program, "raised", options, on_progress)
    sites = find_sites(program)
    if not sites.sites:
        raise UnsupportedError(
            "LK4001", "the model has no product that can be quantized", details=sorted(set(sites.refused))
        )
    quiet = replace(options, golden=False)
    floats = compile_program(observed(program, sites), quiet, on_progress)
    show("calibrating")
    methods = [make_method(settings.method, settings.percentile) for _ in range(sites.values)]
    count = len(program.signature.outputs)
    for sample in samples:
        for method, values in zip(methods, floats.session.run(*sample)[count:], strict=True):
            method.observe(values)
    scalings = [unsigned_scaling(*method.range()) for method in methods]
    insert(program, sites, scalings)
    tapped = compile_program(observed(program, sites, dequantized=True), quiet, on_progress)
    inputs = program.example_inputs or samples[0]
    show("comparing")
    wanted, found = floats.session.run(*inputs), tapped.session.run(*inputs)
    references = wanted[:count] if eager is None else eager(*inputs)
    report = GateB(program.source, settings.method, len(samples), [], [], list(sites.refused))
    report.outputs = [
        Output(spec.name, compare(actual, reference))
        for spec, actual, reference in zip(program.signature.outputs, found, references, strict=False)
    ]
    report.activations = _activations(sites, scalings, wanted[count:], found[count:])
    return Quantized(compile_program(program, options, on_progress), report)


def _activations(
    sites: Sites, scalings: Sequence[tuple[float, int]], floats: Sequence[Array], quantized: Sequence[Array]
) -> list[Any]:
    first = {site.value: site for site in reversed(sites.sites)}
    return [
        judge_activation(first[value].name, first[value].location, scalings[value], floats[value], quantized[value])
        for value in range(sites.values)
    ]
