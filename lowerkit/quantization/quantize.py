"""`quantize`: static int8 quantization of a float model, compiled, with the verdict of gate B.

Steps
    1. raise the model; find its products of f32 with a constant right operand;
    2. compile a copy with their activations as outputs, run it on every sample, and make a range of each;
    3. write quantize and dequantize ops around them: activations unsigned, one scale for all elements; weights
       symmetric, one scale for each output channel;
    4. run both models and compare (gate B); where it does not hold, choose products to keep in floats
       (:mod:`mixed_precision`) and compare again;
    5. compile: the passes of ``passes/quantize`` bring the rest to the integer level.

What is no product (softmax, norms, additions, attention) stays in floats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.parity.gate_b import GateB, KeptInFloats
from lowerkit.quantization.calibration_data import Sample, refuse_nan, samples_of
from lowerkit.quantization.methods import CalibrationMethod, make_method

if TYPE_CHECKING:
    from lowerkit.compiler import Compiled, CompileOptions
    from lowerkit.program.program import Program
    from lowerkit.quantization.insertion import Scaling
    from lowerkit.quantization.mixed_precision import Choice
    from lowerkit.quantization.observation import Observation
    from lowerkit.quantization.sites import Sites

Array = np.ndarray[Any, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Quantization:
    """How to quantize.

    Attributes:
        method: a name of :data:`METHODS`.
        percentile: of the method ``percentile``.
        keep_float: products to keep in floats: patterns of node names and module paths, and ``auto``: the fewest FLOPs
            with which gate B holds, where it does not hold without.
        smooth: alpha of :mod:`smoothing`, 0 to 1; 0 is none.
    """

    method: str = "min-max"
    percentile: float = 99.99
    keep_float: Sequence[str] = ("auto",)
    smooth: float = 0.0


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
    percentile: float | None = None,
    keep_float: Sequence[str] = ("auto",),
    smooth: float = 0.0,
    target: str = "cpu",
    device: str | None = None,
    allow: Sequence[str] = (),
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Quantized:
    """Quantizes ``model`` (as ``lowerkit.compile`` takes it) to int8 and compiles it.

    Args:
        model: a float model, f32.
        calibration: arrays by input name with samples in front, or a list of samples, each a list of inputs.
        example_inputs: what gate B compares on, and what fixes the shapes of a module; without them the first sample.
        method: ``min-max``, ``percentile`` or ``mse``.
        percentile: of the method ``percentile``, 99.99 if not given.
        keep_float: as in :class:`Quantization`; ``()`` keeps nothing in floats.
        smooth: as in :class:`Quantization`.
        target: accelerators and the CPU with their levels, such as ``cpu:x86-64-v3``.
        device: the device that takes the place of the target's in this process, such as ``cuda-sim``.
        allow: what accelerators may compute less exactly than the model says: ``tf32`` on ``cuda``.
        dynamic_shapes: as for ``torch.export.export``, of a module or a factory's; the samples may differ in shape.
        kwargs: keyword inputs of ``forward``, beside ``example_inputs``; in samples they follow the others.

    Raises:
        InputError: LK1003, the calibration data does not fit the model.
        UsageError: LK1009, the method, percentile or smoothing is unknown, a percentile is given for another method,
            or ``keep_float`` names no product.
        UnsupportedError: LK4001, the model has no product that can be quantized.
        LowerkitError: the model cannot be captured or compiled.
    """
    from lowerkit.compiler import CompileOptions

    if percentile is not None and method != "percentile":
        raise UsageError("LK1009", f"the method {method!r} has no percentile", hint="give method='percentile' with it")
    settings = Quantization(method, 99.99 if percentile is None else percentile, tuple(keep_float), smooth)
    given = example_inputs
    if given is None and not kwargs and not isinstance(calibration, Mapping) and len(calibration):
        given = calibration[0]

    def captured(inputs: Sequence[Any] | None, named: Mapping[str, Any] | None, shapes: Any = None) -> Program:
        if isinstance(model, (str, os.PathLike)):
            from lowerkit.capture.load_model import capture_path

            return capture_path(str(model), example_inputs=inputs, kwargs=named, dynamic_shapes=shapes)
        from lowerkit.capture.capture import capture

        return capture(model, inputs, dynamic_shapes=shapes, kwargs=named)

    def captured_for(sample: Sample) -> Program:
        if program.arguments is None:  # an ONNX model: flat inputs
            return captured(sample, None)
        return captured(*program.arguments(sample))

    program = captured(given, kwargs, dynamic_shapes)
    if isinstance(calibration, Mapping):
        samples = samples_of(program.signature, calibration)
    else:
        from lowerkit.program.dtypes import to_numpy

        samples = [
            [np.asarray(value) if isinstance(value, np.ndarray) else to_numpy(value) for value in sample]
            for sample in calibration
        ]
    options = CompileOptions(target=target, allow=frozenset(allow), device=device)
    return quantize_program(program, samples, settings, options, captured_for=captured_for)


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
        settings: how ranges are chosen, and what stays in floats.
        options: how to compile.
        on_progress: called with what runs now.
        captured_for: captures the model for the shapes of a sample; needed where ``program`` has symbolic dims, whose
            activations cannot be observed.
    """
    from lowerkit.compiler import compile_program
    from lowerkit.quantization.insertion import insert
    from lowerkit.quantization.observation import choose_scalings, compile_observed, raised_sites

    def method() -> CalibrationMethod:
        return make_method(settings.method, settings.percentile)

    method()  # fails before anything is computed
    if not 0 <= settings.smooth <= 1:
        raise UsageError("LK1009", f"a smoothing of {settings.smooth} is not from 0 to 1")
    if not samples:
        raise UsageError("LK1003", "there is no calibration data", hint="give at least one sample of every input")
    refuse_nan(program.signature, samples)
    symbolic = bool(program.signature.dims)
    if symbolic and captured_for is None:
        raise UsageError("LK1004", "a model with symbolic dims is calibrated at fixed shapes", hint="use --dynamic")
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(tuple(array.shape for array in sample) if symbolic else (), []).append(sample)
    observations: list[Observation] = []
    for group in groups.values():
        fixed = _of_fixed_shapes(captured_for(group[0]), group[0]) if symbolic and captured_for is not None else program
        observations.append(compile_observed(fixed, group, replace(options, golden=False), on_progress))
    if on_progress is not None:
        on_progress("calibrating")
    scalings = choose_scalings(observations, method, settings.smooth)
    in_floats, report = _hold_gate(observations[0], scalings, settings, len(samples), on_progress)
    sites = raised_sites(program, options, on_progress) if symbolic else observations[0].sites
    if sites.values != len(scalings):
        raise UnsupportedError(
            "LK4001", f"with symbolic dims {sites.values} activations are quantized, {len(scalings)} were observed"
        )
    insert(program, sites, scalings, in_floats)
    return Quantized(compile_program(program, options, on_progress), report)


def _of_fixed_shapes(program: Program, sample: Sample) -> Program:
    """Returns ``program`` for the shapes of a sample: what was exported before keeps its symbolic dims."""
    if program.signature.dims and program.exported is not None:
        from lowerkit.capture.torch_export.capture import capture_at_shapes

        return capture_at_shapes(program.exported, sample, program.source)
    if program.signature.dims and program.onnx_model is not None:
        from lowerkit.capture.onnx.capture import capture_onnx

        shapes = {spec.name: array.shape for spec, array in zip(program.signature.inputs, sample, strict=True)}
        return capture_onnx(program.onnx_model, input_shapes=shapes, example_inputs=sample)
    return program


def _hold_gate(
    observation: Observation,
    scalings: Sequence[Scaling],
    settings: Quantization,
    count_of_samples: int,
    on_progress: Progress | None,
) -> tuple[Sequence[int], GateB]:
    """Judges the quantized model and, where it fails and ``auto`` allows, keeps products in floats.

    Returns:
        the places of the products in floats, and the report on the model with them.
    """
    from lowerkit.quantization.keep_float import resolve
    from lowerkit.quantization.mixed_precision import MixedPrecision
    from lowerkit.quantization.observation import judge
    from lowerkit.quantization.switches import SwitchedModel

    sites = observation.sites
    keep = resolve(settings.keep_float, sites.sites)

    def verdict(in_floats: Sequence[int]) -> GateB:
        return judge(observation, scalings, in_floats, settings.method, count_of_samples, on_progress)

    first = verdict(keep.asked)
    if first.passed or not keep.automatic:
        first.kept = _kept(sites, keep.asked, keep.asked, None)
        return keep.asked, first
    model = SwitchedModel(observation.program, sites, scalings, observation.options, on_progress)
    search = MixedPrecision(model, sites, keep.asked, on_progress)
    for number, sample in enumerate(observation.samples):
        search.add(sample, measured=number == 0)
    choice = search.choose()
    report = verdict(choice.in_floats)
    chosen_again = not report.passed and observation.program.example_inputs is not None
    if chosen_again:
        # The calibration samples do not show what fails here, such as a range that these inputs leave.
        search.add(observation.inputs, measured=True)
        choice = search.choose()
        report = verdict(choice.in_floats)
    report.chosen_again = chosen_again
    report.kept = _kept(sites, choice.in_floats, keep.asked, choice)
    report.without_choice = first.outputs
    return choice.in_floats, report


def _kept(sites: Sites, in_floats: Sequence[int], asked: Sequence[int], choice: Choice | None) -> list[KeptInFloats]:
    flops = max(sum(site.flops for site in sites.sites), 1)
    weights = max(sum(site.weight_bytes for site in sites.sites), 1)
    rows: list[KeptInFloats] = []
    for number, place in enumerate(in_floats):
        site = sites.sites[place]
        measured = (None, None) if choice is None else (choice.alone_db[number], choice.gained_db[number])
        shares = site.flops / flops, site.weight_bytes / weights
        rows.append(KeptInFloats(site.name, site.module_path, site.location, place in asked, *shares, *measured))
    return rows
