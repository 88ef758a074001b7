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
    dynamic_shapes: Any = None,
) -> Quantized:
    """Quantizes ``model`` (as ``lowerkit.compile`` takes it) to int8 and compiles it.

    Args:
        model: a float model, f32.
        calibration: arrays by input name with samples in front, or a list of samples, each a list of inputs.
        example_inputs: what gate B compares on, and what fixes the shapes of a module; without them the first sample.
        method: ``min-max`` or ``percentile``.
        percentile: of the method ``percentile``.
        cpu: ``host`` or the CPU level to compile for.
        dynamic_shapes: as for ``torch.export.export``, of a module; the samples may then differ in shape.

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

    def captured(inputs: Sequence[Any] | None, shapes: Any = None) -> Program:
        if isinstance(model, (str, os.PathLike)):
            from lowerkit.capture.load_model import capture_path

            return capture_path(str(model), [], [], example_inputs=inputs)
        from lowerkit.capture.capture import capture

        return capture(model, inputs, dynamic_shapes=shapes)

    def captured_for(sample: Sample) -> Program:
        from lowerkit.capture.dtypes import to_torch

        return captured(sample if isinstance(model, (str, os.PathLike)) else [to_torch(array) for array in sample])

    program = captured(given, dynamic_shapes)
    if isinstance(calibration, Mapping):
        samples = samples_of(program.signature, calibration)
    else:
        from lowerkit.capture.dtypes import to_numpy

        samples = [
            [np.asarray(value) if isinstance(value, np.ndarray) else to_numpy(value) for value in sample]
            for sample in calibration
        ]
    settings = Quantization(method, percentile)
    return quantize_program(program, samples, settings, CompileOptions(cpu=cpu), captured_for=captured_for)


def quantize_program(
    program: Program,
    samples: Sequence[Sample],
    settings: Quantization,
    options: CompileOptions,
    on_progress: Progress | None = None,
    captured_for: Callable[[Sample], Program] | None = None,
) -> Quantized:
    """Quantizes a captured program, which is changed; see :func:`quantize`.

    Args:
        program: of a float model.
        samples: calibration data.
        settings: how ranges are chosen.
        options: how to compile.
        on_progress: called with what runs now.
        captured_for: captures the model for the shapes of a sample; needed where ``program`` has symbolic dims, whose
            activations cannot be observed.
    """
    from lowerkit.compiler import compile_program
    from lowerkit.quantization.sites import insert

    make_method(settings.method, settings.percentile)  # fails before anything is computed
    if not samples:
        raise UsageError("LK1003", "there is no calibration data", hint="give at least one sample of every input")
    symbolic = bool(program.signature.dims)
    if symbolic and captured_for is None:
        raise UsageError("LK1004", "a model with symbolic dims is calibrated at fixed shapes", hint="use --dynamic")
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(tuple(array.shape for array in sample) if symbolic else (), []).append(sample)
    methods: list[Any] = []
    observations: list[_Observation] = []
    for group in groups.values():
        fixed = captured_for(group[0]) if symbolic and captured_for is not None else program
        observations.append(_observe(fixed, group, settings, methods, replace(options, golden=False), on_progress))
    scalings = [unsigned_scaling(*method.range()) for method in methods]
    report = _judge(observations[0], scalings, settings, len(samples), on_progress)
    if symbolic:
        sites = _sites(program, options, on_progress)
        if sites.values != len(scalings):
            raise UnsupportedError(
                "LK4001", f"with symbolic dims {sites.values} activations are quantized, {len(scalings)} were observed"
            )
        insert(program, sites, scalings)
    return Quantized(compile_program(program, options, on_progress), report)


@dataclass
class _Observation:
    """A program of fixed shapes at stage ``raised``, compiled with its activations as outputs."""

    program: Program
    sites: Sites
    floats: Compiled
    eager: Callable[..., list[Array]] | None
    samples: Sequence[Sample]
    options: CompileOptions


def _sites(program: Program, options: CompileOptions, on_progress: Progress | None) -> Sites:
    from lowerkit.compiler import lower_program
    from lowerkit.quantization.sites import find_sites

    lower_program(program, "raised", options, on_progress)
    sites = find_sites(program)
    if not sites.sites:
        raise UnsupportedError(
            "LK4001", "the model has no product that can be quantized", details=sorted(set(sites.refused))
        )
    return sites


def _observe(
    program: Program,
    samples: Sequence[Sample],
    settings: Quantization,
    methods: list[Any],
    options: CompileOptions,
    on_progress: Progress | None,
) -> _Observation:
    """Runs the float model on samples of one shape; ``methods``, made where there are none, see its activations."""
    from lowerkit.compiler import compile_program
    from lowerkit.quantization.sites import observed

    eager = program.eager
    sites = _sites(program, options, on_progress)
    floats = compile_program(observed(program, sites), options, on_progress)
    if on_progress is not None:
        on_progress("calibrating")
    methods += [] if methods else [make_method(settings.method, settings.percentile) for _ in range(sites.values)]
    count = len(program.signature.outputs)
    for sample in samples:
        for method, values in zip(methods, floats.session.run(*sample)[count:], strict=True):
            method.observe(values)
    return _Observation(program, sites, floats, eager, samples, options)


def _judge(
    observation: _Observation,
    scalings: Sequence[tuple[float, int]],
    settings: Quantization,
    count_of_samples: int,
    on_progress: Progress | None,
) -> GateB:
    """Quantizes the observed program, which is changed, and compares it with the float model by gate B."""
    from lowerkit.compiler import compile_program
    from lowerkit.quantization.sites import insert, observed

    program, sites = observation.program, observation.sites
    insert(program, sites, scalings)
    tapped = compile_program(observed(program, sites, dequantized=True), observation.options, on_progress)
    inputs = program.example_inputs or observation.samples[0]
    if on_progress is not None:
        on_progress("comparing")
    count = len(program.signature.outputs)
    wanted, found = observation.floats.session.run(*inputs), tapped.session.run(*inputs)
    references = wanted[:count] if observation.eager is None else observation.eager(*inputs)
    report = GateB(program.source, settings.method, count_of_samples, [], [], list(sites.refused))
    report.outputs = [
        Output(spec.name, compare(actual, reference))
        for spec, actual, reference in zip(program.signature.outputs, found, references, strict=False)
    ]
    report.activations = _activations(sites, scalings, wanted[count:], found[count:])
    return report


def _activations(
    sites: Sites, scalings: Sequence[tuple[float, int]], floats: Sequence[Array], quantized: Sequence[Array]
) -> list[Any]:
    first = {site.value: site for site in reversed(sites.sites)}
    return [
        judge_activation(first[value].name, first[value].location, scalings[value], floats[value], quantized[value])
        for value in range(sites.values)
    ]
