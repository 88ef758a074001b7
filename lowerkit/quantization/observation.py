"""What the float model computes on the calibration data, and how far the quantized model is from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UnsupportedError
from lowerkit.parity.gate_b import GateB, Output, judge_activation
from lowerkit.parity.metrics import compare
from lowerkit.quantization.calibration_data import Sample
from lowerkit.quantization.insertion import Scaling, insert
from lowerkit.quantization.methods import CalibrationMethod, unsigned_scaling
from lowerkit.quantization.sites import Sites, find_sites
from lowerkit.quantization.smoothing import smoothed_weights, smoothing_factors
from lowerkit.quantization.taps import observed

if TYPE_CHECKING:
    from lowerkit.compiler import Compiled, CompileOptions
    from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]
Progress = Callable[[str], None]


@dataclass
class Observation:
    """A program of fixed shapes at stage ``raised``, in floats, compiled with its activations as outputs."""

    program: Program
    sites: Sites
    floats: Compiled
    samples: Sequence[Sample]
    options: CompileOptions

    @property
    def inputs(self) -> Sample:
        """What gate B is judged on: the example inputs of the program, or else the first sample."""
        return self.program.example_inputs or self.samples[0]


def raised_sites(program: Program, options: CompileOptions, on_progress: Progress | None) -> Sites:
    """Raises a program, in place, and finds its products.

    Raises:
        UnsupportedError: LK4001, none can be quantized.
    """
    from lowerkit.compiler import lower_program

    lower_program(program, "raised", options, on_progress)
    sites = find_sites(program)
    if not sites.sites:
        raise UnsupportedError(
            "LK4001", "the model has no product that can be quantized", details=sorted(set(sites.refused))
        )
    return sites


def compile_observed(
    program: Program, samples: Sequence[Sample], options: CompileOptions, on_progress: Progress | None
) -> Observation:
    """Compiles the float model with its activations as outputs; ``program`` is raised in place."""
    from lowerkit.compiler import compile_program

    sites = raised_sites(program, options, on_progress)
    return Observation(
        program, sites, compile_program(observed(program, sites), options, on_progress), samples, options
    )


def activations_of(observations: Sequence[Observation]) -> Iterator[list[Array]]:
    """Runs the float model on all samples, each from the initial states; gives the distinct activations of each."""
    for observation in observations:
        count = len(observation.program.signature.outputs)
        for sample in observation.samples:
            observation.floats.session.reset()
            yield observation.floats.session.run(*sample)[count:]


def choose_scalings(
    observations: Sequence[Observation], make_method: Callable[[], CalibrationMethod], smooth: float
) -> list[Scaling]:
    """Returns how each distinct activation is rounded, by what it is on the calibration data.

    Args:
        observations: the same model, of the shapes that the samples have.
        make_method: makes a method for one activation.
        smooth: alpha of :mod:`smoothing`; 0 is none.
    """
    count = observations[0].sites.values
    factors: list[Array | None] = [None] * count
    if smooth:
        weights = smoothed_weights(observations[0].program, observations[0].sites)
        magnitudes: dict[int, Array] = {}
        for activations in activations_of(observations):
            for value in weights:
                found = np.abs(activations[value])
                largest = np.where(np.isfinite(found), found, 0).reshape(-1, found.shape[-1]).max(0, initial=0.0)
                magnitudes[value] = np.maximum(largest, magnitudes.get(value, 0.0))
        for value, matrices in weights.items():
            factors[value] = smoothing_factors(magnitudes[value], matrices, smooth)
    methods = [make_method() for _ in range(count)]
    for activations in activations_of(observations):
        for method, values, divisor in zip(methods, activations, factors, strict=True):
            method.observe(Scaling(1.0, 0, divisor).smoothed(values))
    return [
        Scaling(*unsigned_scaling(*method.range()), divisor) for method, divisor in zip(methods, factors, strict=True)
    ]


def judge(
    observation: Observation,
    scalings: Sequence[Scaling],
    in_floats: Collection[int],
    method: str,
    count_of_samples: int,
    on_progress: Progress | None,
) -> GateB:
    """Quantizes a copy of the observed program and compares it with the float model by gate B.

    Args:
        observation: of the float model; judged on its ``inputs``.
        scalings: of each distinct activation.
        in_floats: places of the products that stay in floats.
        method: the name of the calibration method, for the report.
        count_of_samples: for the report.
        on_progress: called with what runs now.
    """
    from lowerkit.compiler import compile_program

    program, sites = observation.program.copy(), observation.sites
    insert(program, sites, scalings, in_floats)
    tapped = compile_program(observed(program, sites, in_floats), observation.options, on_progress)
    inputs = observation.inputs
    if on_progress is not None:
        on_progress("comparing")
    count = len(program.signature.outputs)
    observation.floats.session.reset()  # calibration has changed the states, and eager starts from the initial ones
    wanted, found = observation.floats.session.run(*inputs), tapped.session.run(*inputs)
    references = wanted[:count] if program.eager is None else program.eager(*inputs)
    report = GateB(program.source, method, count_of_samples, [], [], list(sites.refused), len(sites.sites))
    report.outputs = [
        Output(spec.name, compare(actual, reference))
        for spec, actual, reference in zip(program.signature.outputs, found, references, strict=False)
    ]
    rounded = {site.value for place, site in enumerate(sites.sites) if place not in in_floats}
    report.activations = [
        judge_activation(
            site.name,
            site.location,
            (scalings[site.value].scale, scalings[site.value].zero_point) if site.value in rounded else None,
            wanted[count + site.value],
            found[count + site.value],
            scalings[site.value].factors,
        )
        for site in sites.first_readers()
    ]
    return report
